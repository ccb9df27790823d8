import asyncio

# pytest-asyncio asks for the main thread's loop, which Python 3.11 then makes and nobody closes; saying that there is
# none prevents it
asyncio.set_event_loop(None)

from scaler.runtime.recent_events import RecentEvents


def kept(count: int, most: int = 10) -> RecentEvents:
    recent = RecentEvents("c-1", most)
    for number in range(1, count + 1):
        recent.add({"number": number})
    return recent


def told(recent: RecentEvents, after: int) -> tuple[list[int], int]:
    answer = recent.after(after)
    assert answer["instance"] == "c-1"
    return [each["number"] for each in answer["items"]], answer["last"]


def test_a_reader_gets_what_came_since() -> None:
    recent = kept(5)
    assert told(recent, 0) == ([1, 2, 3, 4, 5], 5)
    assert told(recent, 3) == ([4, 5], 5)
    assert told(recent, 5) == ([], 5)


def test_nothing_has_come_yet() -> None:
    assert told(kept(0), 0) == ([], 0)


def test_what_is_too_old_is_gone_and_numbers_stay() -> None:
    recent = kept(25)
    assert told(recent, 3) == (list(range(16, 26)), 25)
    assert told(recent, 20) == ([21, 22, 23, 24, 25], 25)


def test_many_come_in_several_answers() -> None:
    recent, read, last = kept(4500, most=5000), list[int](), 0
    while (answer := told(recent, last))[0]:
        read += answer[0]
        last = answer[1]
    assert read == list(range(1, 4501))


def test_a_number_that_another_process_gave_is_nobodys() -> None:
    assert told(kept(5), 900)[0] == []

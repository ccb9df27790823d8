import json

from scaler.keda.book import MOST_ENTRIES, MOST_SHOWN, Asker, Book
from scaler.keda.trigger import read


def filled(entries: int, **more: str) -> Book:
    book = Book()
    for number in range(entries):
        book.entry(Asker.of("serving", f"so-{number}"), read({"fleet": "spares", **more}))
    return book


def test_a_page_has_the_newest_and_counts_the_others() -> None:
    page = filled(MOST_ENTRIES + 10).as_json()
    assert len(page["items"]) == MOST_SHOWN
    assert page["items"][0]["scaledObject"] == f"serving/so-{MOST_ENTRIES + 9}"
    assert page["leftOut"] == MOST_ENTRIES - MOST_SHOWN


def test_a_page_may_be_of_one_scaled_object() -> None:
    page = filled(1000).as_json("serving/so-3")
    assert ([each["scaledObject"] for each in page["items"]], page["leftOut"]) == (["serving/so-3"], 0)


def test_keys_that_mean_nothing_make_no_further_entry() -> None:
    book, asker = Book(), Asker.of("serving", "a")
    entry = book.entry(asker, read({"fleet": "spares", "one": "x"}))
    assert book.entry(asker, read({"fleet": "spares", "other": "x"})) is entry
    (item,) = book.as_json()["items"]
    assert item["ignoredKeys"] == ["other"]


def test_names_are_told_as_one_line_of_ascii() -> None:
    book = Book()
    entry = book.entry(Asker.of("serving", "a\x00\n\u202e" + "n" * 20_000), None)
    entry.refused(1.0, "INVALID_ARGUMENT", "m" * 20_000)
    ((name, _),) = book.last_calls()
    assert name.startswith("serving/a\\x00\\n\\u202en")
    assert len(json.dumps(book.as_json())) < 2_000


def test_who_asks_again_stays_and_who_is_silent_makes_room() -> None:
    book, trigger = Book(), read({"fleet": "spares"})
    kept, silent = (book.entry(Asker("serving", name), trigger) for name in ("kept", "silent"))
    for number in range(MOST_ENTRIES + 10):
        book.again(kept, trigger)
        book.entry(Asker("serving", f"so-{number}"), trigger)
    assert (kept.forgotten, silent.forgotten) == (False, True)
    assert book.entry(Asker("serving", "kept"), trigger) is kept
    assert book.entry(Asker("serving", "silent"), trigger) is not silent


def test_room_is_made_when_all_have_asked_again() -> None:
    book, trigger = Book(), read({"fleet": "spares"})
    entries = [book.entry(Asker("serving", f"so-{number}"), trigger) for number in range(MOST_ENTRIES)]
    for entry in entries:
        book.again(entry, trigger)
    new = book.entry(Asker("serving", "new"), trigger)
    assert not new.forgotten
    assert [entry.forgotten for entry in entries].count(True) == 1


def test_who_asked_last_is_told_first() -> None:
    book, trigger = Book(), read({"fleet": "spares"})
    first, second = (book.entry(Asker("serving", name), trigger) for name in ("first", "second"))
    first.at = second.at = 1.0
    book.again(first, trigger)
    assert [name for name, _ in book.last_calls()] == ["serving/first", "serving/second"]
    assert [item["scaledObject"] for item in book.as_json()["items"]] == ["serving/first", "serving/second"]

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.reference.errors import BadCheckpoint
from warmpool.reference.tokenizer import EOS, ByteTokenizer, FileTokenizer, TextStream, open_tokenizer

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(texts)
def test_streaming_gives_back_the_text_in_whole_characters(text: str) -> None:
    tokenizer = ByteTokenizer()
    stream = TextStream(tokenizer.decoder())
    parts = [stream.push(token) for token in tokenizer.encode(text)]
    assert all("\ufffd" not in part or "\ufffd" in text for part in parts)
    assert "".join(parts) + stream.flush() == text


@given(texts, st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_shown(text: str, stop: list[str]) -> None:
    tokenizer = ByteTokenizer()
    stream = TextStream(tokenizer.decoder(), stop)
    shown = ""
    for token in tokenizer.encode(text):
        shown += stream.push(token)
        assert text.startswith(shown)
        if stream.stopped_by is not None:
            break
    shown += stream.flush()
    found = [text.index(part) for part in stop if part in text]
    assert (stream.stopped_by is not None) == bool(found)
    # The earliest stop string to be complete ends the stream; one that begins before it may still be incomplete then.
    assert not any(part in shown for part in stop)
    if not found:
        assert shown == text


def test_a_broken_character_is_shown_once_it_cannot_be_mended() -> None:
    decoder = ByteTokenizer().decoder()
    assert decoder.push(0xE2) == ""
    assert decoder.push(0x41) == "\ufffdA"
    assert decoder.push(0xF0) == ""
    assert decoder.flush() == "\ufffd"


def test_special_tokens_have_no_text() -> None:
    assert ByteTokenizer().decoder().push(EOS) == ""


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {symbol: number for number, symbol in enumerate(sorted(alphabet))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|eot_id|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_checkpoints_own_tokenizer_streams_whole_characters(bpe: Path) -> None:
    tokenizer = open_tokenizer(bpe)
    assert isinstance(tokenizer, FileTokenizer)
    text = "naïve 日本 🙂 end"
    decoder = tokenizer.decoder()
    parts = [decoder.push(token) for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) + decoder.flush() == text
    assert tokenizer.special("<|eot_id|>") == 256


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json"):
        open_tokenizer(tmp_path)

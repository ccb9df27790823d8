from typing import Any

import pytest

from warmpool.reference.errors import RequestRejected
from warmpool.reference.openai import Generation, Reader, Writer
from warmpool.reference.sequence import FinishReason, Output, TokenLogprobs
from warmpool.reference.tokenizer import ByteTokenizer

READER = Reader(models=("tiny", "alias"), tokenizer=ByteTokenizer(), bos_token=256, max_model_len=32)
# As recorded from vLLM 0.32.
CHUNK_KEYS = ["id", "object", "created", "model", "choices"]
CHOICE_KEYS = [
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
]
USAGE_CHUNK_KEYS = [*CHUNK_KEYS, "usage", "system_fingerprint"]


def _completion(**fields: Any) -> Generation:
    return READER.completion({"model": "tiny", "prompt": "hi", **fields}, seed=42)


def _writer(**fields: Any) -> Writer:
    return Writer(
        generation=_completion(**fields),
        tokenizer=ByteTokenizer(),
        response_id="cmpl-1",
        created=1,
        fingerprint="f",
    )


def test_a_text_prompt_starts_with_the_begin_token() -> None:
    generation = _completion()
    assert generation.prompt == [256, 104, 105]
    assert (generation.sampling.max_tokens, generation.sampling.seed) == (16, 42)


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_token_ids_are_taken_as_they_are(prompt: Any) -> None:
    assert _completion(prompt=prompt).prompt == [1, 2, 3]


def test_settings_are_read() -> None:
    generation = _completion(
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_tokens=5,
        stop="x",
        ignore_eos=True,
        logprobs=3,
        stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
    )
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.5, 0.9, 7, 5)
    assert (sampling.stop, sampling.ignore_eos, sampling.logprobs) == (("x",), True, 3)
    assert (generation.stream, generation.include_usage, generation.return_token_ids) == (True, True, True)


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        pytest.param({"model": "nope"}, "model", 404, id="model"),
        pytest.param({"prompt": None}, "prompt", 400, id="no-prompt"),
        pytest.param({"prompt": []}, "prompt", 400, id="empty-prompt"),
        pytest.param({"prompt": ["a", "b"]}, "prompt", 400, id="two-prompts"),
        pytest.param({"prompt": [999]}, "prompt", 400, id="unknown-token"),
        pytest.param({"prompt": "x" * 40}, "prompt", 400, id="too-long"),
        pytest.param({"max_tokens": 31}, "max_tokens", 400, id="no-room"),
        pytest.param({"max_tokens": 0}, "max_tokens", 400, id="no-tokens"),
        pytest.param({"max_tokens": True}, "max_tokens", 400, id="boolean-number"),
        pytest.param({"temperature": -1}, "temperature", 400, id="temperature"),
        pytest.param({"temperature": "hot"}, "temperature", 400, id="temperature-text"),
        pytest.param({"top_p": 0}, "top_p", 400, id="top-p"),
        pytest.param({"stop": [""]}, "stop", 400, id="empty-stop"),
        pytest.param({"logprobs": 21}, "logprobs", 400, id="logprobs"),
        pytest.param({"stream": "yes"}, "stream", 400, id="stream"),
        pytest.param({"stream_options": 1}, "stream_options", 400, id="stream-options"),
        pytest.param({"n": 2}, "n", 400, id="n"),
        pytest.param({"presence_penalty": 0.5}, "presence_penalty", 400, id="penalty"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str, status: int) -> None:
    with pytest.raises(RequestRejected) as caught:
        _completion(**fields)
    assert (caught.value.param, caught.value.status) == (param, status)


def test_neutral_settings_are_accepted() -> None:
    _completion(n=1, presence_penalty=0, frequency_penalty=0.0, top_k=-1, echo=False, user="somebody")


def test_messages_become_a_prompt_that_asks_for_the_assistant() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    generation = READER.chat({"model": "tiny", "messages": messages}, seed=1)
    assert bytes(generation.prompt[1:]).decode() == "user: hi\nassistant:"
    assert generation.sampling.max_tokens == 32 - len(generation.prompt)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"messages": []}, id="none"),
        pytest.param({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, id="image"),
        pytest.param({"messages": [{"content": "hi"}]}, id="no-role"),
        pytest.param(
            {"messages": [{"role": "user", "content": "hi"}], "top_logprobs": 2}, id="top-logprobs-alone"
        ),
    ],
)
def test_messages_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRejected):
        READER.chat({"model": "tiny", **fields}, seed=1)


def test_chunks_have_vllms_keys() -> None:
    writer = _writer()
    chunk = writer.chunks(Output(key=1, token=65, text="A"))[0]
    assert list(chunk) == CHUNK_KEYS
    assert list(chunk["choices"][0]) == CHOICE_KEYS
    assert list(writer.usage_chunk()) == USAGE_CHUNK_KEYS
    assert writer.usage_chunk()["usage"] == {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}


def test_log_probabilities_come_as_parallel_lists_with_offsets() -> None:
    writer = _writer(logprobs=1, return_token_ids=True)
    first = writer.chunks(Output(key=1, token=65, text="A", logprobs=TokenLogprobs(-0.5, ((65, -0.5),))))[0]
    second = writer.chunks(Output(key=1, token=200, text="", logprobs=TokenLogprobs(-1.5, ((66, -0.1),))))[0]
    assert first["choices"][0]["prompt_token_ids"] == [256, 104, 105]
    assert second["choices"][0]["logprobs"] == {
        "text_offset": [1],
        "token_logprobs": [-1.5],
        "tokens": ["token_id:200"],
        "top_logprobs": [{"B": -0.1, "token_id:200": -1.5}],
    }
    assert second["choices"][0]["token_ids"] == [200]


def test_a_whole_answer_joins_its_outputs() -> None:
    outputs = [
        Output(key=1, token=65, text="A"),
        Output(key=1, token=66, text="B", finish=FinishReason.LENGTH),
    ]
    answer = _writer(return_token_ids=True).answer(outputs)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("AB", "length", [65, 66])
    assert answer["usage"]["completion_tokens"] == 2

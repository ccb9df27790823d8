"""OpenAI's completions API as vLLM speaks it: requests in, chunks and answers out. Pure: no sockets, no clock.

Bodies are checked by hand: importing a validation library costs a tenth of a cold start's budget, for a dozen fields. What this
engine can't do is refused by name; a request that silently loses a setting would make a drill's figures lie.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from warmpool.reference.errors import RequestRejected
from warmpool.reference.sequence import Output, Sampling
from warmpool.reference.tokenizer import Tokenizer

Json = dict[str, Any]

MAX_LOGPROBS = 20
_DEFAULT_COMPLETION_TOKENS = 16
_NEUTRAL = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "response_format": (None, {"type": "text"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request as the engine understands it.

    Attributes:
        model: the name that the client used.
        prompt: token ids.
        sampling: how tokens are chosen.
        chat: whether the answer has the chat API's shape.
        stream: whether it is sent token by token.
        include_usage: whether a stream ends with a chunk that counts tokens.
        return_token_ids: whether choices carry token ids.
    """

    model: str
    prompt: list[int]
    sampling: Sampling
    chat: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads request bodies for one model.

    Attributes:
        models: the names that it is served under, the first of them its own.
        tokenizer: its tokenizer.
        bos_token: what prompts given as text start with.
        max_model_len: prompt and answer together, in tokens.
    """

    models: tuple[str, ...]
    tokenizer: Tokenizer
    bos_token: int | None
    max_model_len: int

    def completion(self, body: object, *, seed: int) -> Generation:
        """Read the body of POST /v1/completions. `seed` is used where the request has none.

        Raises:
            RequestRejected: what is wrong, and in which field.
        """
        fields = self._checked(body)
        prompt = self._prompt(fields.get("prompt"))
        logprobs = _integer(fields, "logprobs", None, 0, MAX_LOGPROBS)
        return self._generation(fields, prompt, logprobs=logprobs, chat=False, seed=seed)

    def chat(self, body: object, *, seed: int) -> Generation:
        """Read the body of POST /v1/chat/completions. `seed` is used where the request has none.

        Raises:
            RequestRejected: what is wrong, and in which field.
        """
        fields = self._checked(body)
        top = _integer(fields, "top_logprobs", None, 0, MAX_LOGPROBS)
        logprobs = (top or 0) if _flag(fields, "logprobs") else None
        if top is not None and logprobs is None:
            raise RequestRejected("top_logprobs needs logprobs: true", param="top_logprobs")
        prompt = self._bounded(self._conversation(fields.get("messages")), "messages")
        return self._generation(fields, prompt, logprobs=logprobs, chat=True, seed=seed)

    def _checked(self, body: object) -> Json:
        if not isinstance(body, dict):
            raise RequestRejected("the body must be a JSON object")
        model = body.get("model", self.models[0])
        if model not in self.models:
            raise RequestRejected(
                f"The model `{model}` does not exist. Valid aliases: {', '.join(self.models)}.",
                status=HTTPStatus.NOT_FOUND,
                kind="NotFoundError",
                param="model",
            )
        for name, neutral in _NEUTRAL.items():
            if body.get(name) not in neutral:
                raise RequestRejected(
                    f"{name}: {body[name]!r} is not supported by the reference engine", param=name
                )
        return body

    def _prompt(self, prompt: object) -> list[int]:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            start = [] if self.bos_token is None else [self.bos_token]
            return self._bounded(start + self.tokenizer.encode(prompt), "prompt")
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            if not all(0 <= token < self.tokenizer.size for token in prompt):
                raise RequestRejected(
                    f"prompt: token ids must be from 0 to {self.tokenizer.size - 1}", param="prompt"
                )
            return self._bounded(prompt, "prompt")
        raise RequestRejected("prompt: one string or one list of token ids is wanted", param="prompt")

    def _bounded(self, prompt: list[int], param: str) -> list[int]:
        if not prompt:
            raise RequestRejected("the prompt is empty", param=param)
        if len(prompt) >= self.max_model_len:
            raise RequestRejected(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your request has"
                f" {len(prompt)} input tokens. Please reduce the length of the input messages.",
                param=param,
            )
        return prompt

    def _generation(
        self, fields: Json, prompt: list[int], *, logprobs: int | None, chat: bool, seed: int
    ) -> Generation:
        room = self.max_model_len - len(prompt)
        asked = _integer(fields, "max_completion_tokens", None, 1, None) if chat else None
        if asked is None:
            default = room if chat else min(room, _DEFAULT_COMPLETION_TOKENS)
            asked = _integer(fields, "max_tokens", default, 1, None)
        assert asked is not None
        if asked > room:
            raise RequestRejected(
                f"max_tokens: {asked} with a prompt of {len(prompt)} tokens exceeds the maximum context length of"
                f" {self.max_model_len} tokens",
                param="max_tokens",
            )
        sampling = Sampling(
            max_tokens=asked,
            temperature=_number(fields, "temperature", 1.0, 0.0, 2.0),
            top_p=_number(fields, "top_p", 1.0, math.ulp(0.0), 1.0),
            seed=seed if fields.get("seed") is None else int(_integer(fields, "seed", 0, None, None) or 0),
            stop=_stop(fields.get("stop")),
            ignore_eos=_flag(fields, "ignore_eos"),
            logprobs=logprobs,
        )
        options = fields.get("stream_options") or {}
        if not isinstance(options, dict):
            raise RequestRejected("stream_options: an object is wanted", param="stream_options")
        return Generation(
            model=fields.get("model", self.models[0]),
            prompt=prompt,
            sampling=sampling,
            chat=chat,
            stream=_flag(fields, "stream"),
            include_usage=_flag(options, "include_usage"),
            return_token_ids=_flag(fields, "return_token_ids"),
        )

    def _conversation(self, messages: object) -> list[int]:
        """Messages in Llama 3's template where its special tokens exist, else as lines of text."""
        if not isinstance(messages, list) or not messages:
            raise RequestRejected("messages: a list of at least one message is wanted", param="messages")
        tokens = [] if self.bos_token is None else [self.bos_token]
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise RequestRejected(
                    f"messages[{number}]: an object with role and content is wanted", param="messages"
                )
            tokens += self._message(message["role"], _content(message.get("content"), number), ends=True)
        return tokens + self._message("assistant", "", ends=False)

    def _message(self, role: str, content: str, *, ends: bool) -> list[int]:
        start, end, over = (
            self.tokenizer.special(text)
            for text in ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
        )
        if start is None or end is None or over is None:
            return self.tokenizer.encode(f"{role}: {content}\n" if ends else f"{role}:")
        head = [start, *self.tokenizer.encode(role), end, *self.tokenizer.encode("\n\n")]
        return [*head, *self.tokenizer.encode(content), over] if ends else head


def _content(content: object, number: int) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"
        ]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    raise RequestRejected(f"messages[{number}].content: text is wanted", param="messages")


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestRejected(f"{name}: true or false is wanted, not {value!r}", param=name)
    return value


def _integer(fields: Json, name: str, default: int | None, least: int | None, most: int | None) -> int | None:
    value = fields.get(name)
    if value is None:
        return default
    within = type(value) is int and (least is None or value >= least) and (most is None or value <= most)
    if not within:
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise RequestRejected(f"{name}: an integer {bounds} is wanted, not {value!r}", param=name)
    return int(value)


def _number(fields: Json, name: str, default: float, least: float, most: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise RequestRejected(
            f"{name}: a number from {least:g} to {most:g} is wanted, not {value!r}", param=name
        )
    return float(value)


def _stop(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RequestRejected("stop: a non-empty string or a list of them is wanted", param="stop")
    return tuple(texts)


@dataclass(slots=True, kw_only=True)
class Writer:
    """Writes one request's answer.

    Attributes:
        generation: the request.
        tokenizer: for log-probabilities.
        response_id: as `cmpl-…` or `chatcmpl-…`.
        created: Unix seconds.
        fingerprint: the engine and its version.
    """

    generation: Generation
    tokenizer: Tokenizer
    response_id: str
    created: int
    fingerprint: str
    _tokens: int = 0
    _offset: int = 0

    def chunks(self, output: Output) -> list[Json]:
        """The stream's chunks for one output; a chat's first comes after one that names the role."""
        generation, first = self.generation, self._tokens == 0
        self._count(output)
        chunks = []
        if generation.chat and first:
            chunks.append(
                self._chunk(self._chat_choice({"role": "assistant", "content": ""}, None, first=True))
            )
        if generation.chat:
            choice = self._chat_choice(
                {"content": output.text} if output.text or not output.finish else {}, output
            )
        else:
            choice = self._completion_choice(output, first=first)
        chunks.append(self._chunk(choice))
        return chunks

    def usage_chunk(self) -> Json:
        """The stream's last chunk where `include_usage` is set."""
        return self._head(stream=True) | {
            "choices": [],
            "usage": self.usage(),
            "system_fingerprint": self.fingerprint,
        }

    def answer(self, outputs: Sequence[Output]) -> Json:
        """The whole answer at once."""
        for output in outputs:
            self._count(output)
        last = outputs[-1]
        text = "".join(output.text for output in outputs)
        tokens = [output.token for output in outputs if output.token is not None]
        ids = tokens if self.generation.return_token_ids else None
        choice: Json = {"index": 0}
        if self.generation.chat:
            choice |= {
                "message": {"role": "assistant", "content": text},
                "logprobs": self._chat_logprobs(outputs),
            }
        else:
            choice |= {"text": text, "logprobs": self._logprobs(outputs, offset=0)}
        choice |= {"finish_reason": last.finish, "stop_reason": last.stop_reason, "token_ids": ids}
        prompt_ids = self.generation.prompt if self.generation.return_token_ids else None
        if not self.generation.chat:
            choice["prompt_token_ids"] = prompt_ids
        answer = self._head(stream=False) | {
            "choices": [choice],
            "usage": self.usage(),
            "system_fingerprint": self.fingerprint,
        }
        return answer | ({"prompt_token_ids": prompt_ids} if self.generation.chat else {})

    def usage(self) -> Json:
        """Tokens counted so far."""
        prompt = len(self.generation.prompt)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self._tokens,
            "completion_tokens": self._tokens,
        }

    def _count(self, output: Output) -> None:
        self._tokens += output.token is not None

    def _head(self, *, stream: bool) -> Json:
        kind = "text_completion"
        if self.generation.chat:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.generation.model,
        }

    def _chunk(self, choice: Json) -> Json:
        return self._head(stream=True) | {"choices": [choice]}

    def _ids(self, output: Output | None) -> list[int] | None:
        if not self.generation.return_token_ids or output is None:
            return None
        return [] if output.token is None else [output.token]

    def _completion_choice(self, output: Output, *, first: bool) -> Json:
        logprobs = self._logprobs([output], offset=self._offset)
        self._offset += len(output.text)
        return {
            "index": 0,
            "text": output.text,
            "logprobs": logprobs,
            "finish_reason": output.finish,
            "stop_reason": output.stop_reason,
            "prompt_token_ids": self.generation.prompt
            if first and self.generation.return_token_ids
            else None,
            "token_ids": self._ids(output),
        }

    def _chat_choice(self, delta: Json, output: Output | None, *, first: bool = False) -> Json:
        choice: Json = {
            "index": 0,
            "delta": delta,
            "logprobs": None if output is None else self._chat_logprobs([output]),
            "finish_reason": None if output is None else output.finish,
            "token_ids": self._ids(output),
        }
        if output is not None and output.finish is not None:
            choice["stop_reason"] = output.stop_reason
        return choice | (
            {"prompt_token_ids": self.generation.prompt} if first and self.generation.return_token_ids else {}
        )

    def _logprobs(self, outputs: Sequence[Output], *, offset: int) -> Json | None:
        """OpenAI's form for completions: parallel lists."""
        if self.generation.sampling.logprobs is None:
            return None
        result: Json = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for output in outputs:
            if output.token is not None and output.logprobs is not None:
                result["text_offset"].append(offset)
                result["token_logprobs"].append(output.logprobs.chosen)
                result["tokens"].append(self._name(output.token))
                chosen = {self._name(output.token): output.logprobs.chosen}
                result["top_logprobs"].append(
                    {self._name(token): value for token, value in output.logprobs.top} | chosen
                )
            offset += len(output.text)
        return result

    def _chat_logprobs(self, outputs: Sequence[Output]) -> Json | None:
        """OpenAI's form for chats: one object per token."""
        if self.generation.sampling.logprobs is None:
            return None
        content = [
            self._entry(output.token, output.logprobs.chosen)
            | {"top_logprobs": [self._entry(token, value) for token, value in output.logprobs.top]}
            for output in outputs
            if output.token is not None and output.logprobs is not None
        ]
        return {"content": content}

    def _entry(self, token: int, value: float) -> Json:
        text = self.tokenizer.token_text(token)
        return {"token": self._name(token), "logprob": value, "bytes": list(text.encode())}

    def _name(self, token: int) -> str:
        """A token's text; its id where the text is empty or broken, so that different tokens keep different names."""
        text = self.tokenizer.token_text(token)
        return f"token_id:{token}" if not text or "\ufffd" in text else text


def error_body(message: str, *, kind: str, code: int | str, param: str | None = None) -> Json:
    """An error as vLLM words it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def model_list(models: Sequence[str], root: str, max_model_len: int, created: int) -> Json:
    """The answer of GET /v1/models: every name is a model of its own, as vLLM lists its served names."""
    return {"object": "list", "data": [_card(model, root, max_model_len, created) for model in models]}


def _card(model: str, root: str, max_model_len: int, created: int) -> Json:
    permission = {
        "id": f"modelperm-{created:x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "emberpool",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }

"""Log lines of real engines, as they were written: which phases they tell of."""

import pytest

from warmpool.engines.startup_log import MARKS, read_log, telling_lines
from warmpool.launcher import _MARK_CHARACTERS, _MOST_MARKS
from warmpool.timeline import CacheUse, WeightLoad

GIB = 2**30

VLLM_0_9 = """\
INFO 06-19 23:04:50 [__init__.py:244] Automatically detected platform cuda.
INFO 06-19 23:05:01 [loader.py:447] Loading weights took 0.69 seconds
INFO 06-19 23:05:01 [gpu_model_runner.py:1273] Model loading took 3.4213 GiB and 0.902026 seconds
INFO 06-19 23:05:09 [backends.py:426] Dynamo bytecode transform time: 7.51 s
INFO 06-19 23:05:09 [backends.py:115] Directly load the compiled graph for shape None from the cache
INFO 06-19 23:05:18 [monitor.py:33] torch.compile takes 7.51 s in total
INFO 06-19 23:05:35 [gpu_model_runner.py:1608] Graph capturing finished in 17 secs, took 0.48 GiB
INFO 06-19 23:05:35 [core.py:162] init engine (profile, create kv cache, warmup model) took 34.11 seconds
"""
VLLM_NEW = """\
(Worker_TP0 pid=119) INFO 05-15 16:02:10 [default_loader.py:397] Loading weights took 26.93 seconds
(Worker_TP1 pid=120) INFO 05-15 16:02:12 [default_loader.py:397] Loading weights took 28.10 seconds
(Worker_TP0 pid=119) INFO 05-15 16:02:13 [gpu_model_runner.py:4879] Model loading took 12.66 GiB memory and 31.657031 seconds
(Worker_TP0 pid=119) INFO 05-15 16:02:37 [backends.py:292] Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 5.958 s
(Worker_TP0 pid=119) INFO 05-15 16:02:37 [monitor.py:53] torch.compile took 9.61 s in total
(Worker_TP0 pid=119) INFO 05-15 16:03:34 [monitor.py:81] Initial profiling/warmup run took 56.94 s
(Worker_TP0 pid=119) INFO 05-15 16:03:50 [gpu_model_runner.py:6971] Graph capturing finished in 16 secs, took 0.66 GiB
(EngineCore pid=374) INFO 05-15 16:03:51 [core.py:349] init engine (profile, create kv cache, warmup model) took 90.50 s (compilation: 13.01 s)
"""
SGLANG = """\
[2026-05-15 08:38:02 TP0] Init torch distributed ends. elapsed=0.35 s, mem usage=0.11 GB
[2026-05-15 08:38:32 TP0] Load weight end. elapsed=8.01 s, type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=62.08 GB, mem usage=16.50 GB.
[2026-05-15 08:38:33 TP1] Load weight end. elapsed=9.25 s, type=Qwen3MoeForCausalLM, dtype=torch.bfloat16, avail mem=62.08 GB, mem usage=16.50 GB.
[2026-05-15 08:40:32 TP0] Capture cuda graph end. Time elapsed: 54.61 s. mem usage=1.93 GB. avail mem=8.16 GB.
[2026-05-15 08:40:35] The server is fired up and ready to roll!
"""


def test_vllm_tells_of_weights_compiling_and_graphs() -> None:
    found = read_log(VLLM_0_9.splitlines())
    assert found.phases == pytest.approx({"weights": 0.902026, "compile": 17.11, "capture": 17.0})
    assert found.load == WeightLoad(nbytes=int(3.4213 * GIB), seconds=0.69)
    assert found.compile_cache == CacheUse(hits=1, misses=0)


def test_of_several_workers_the_slowest_counts() -> None:
    found = read_log(VLLM_NEW.splitlines())
    assert found.phases == pytest.approx({"weights": 31.657031, "compile": 74.5, "capture": 16.0})
    assert found.load == WeightLoad(nbytes=int(12.66 * GIB), seconds=28.10)
    sglang = read_log(SGLANG.splitlines())
    assert sglang.phases == pytest.approx({"context": 0.35, "weights": 9.25, "capture": 54.61})
    assert sglang.load == WeightLoad(nbytes=int(16.5 * GIB), seconds=9.25)
    assert sglang.compile_cache is None


@pytest.mark.parametrize(
    ("line", "phases"),
    [
        ("Compiling a graph for compile range (1, 2048) takes 15.65 s", {"compile": 15.65}),
        ("Compiling a graph for dynamic shape takes 15.78 s", {"compile": 15.78}),
        ("torch.compile and initial profiling run took 3.37 s in total", {"compile": 3.37}),
        ("Capture target decode CUDA graph end. elapsed=25.74 s, mem usage=2.66 GB,", {"capture": 25.74}),
        ("Model loading took 15.2209 GB and 12.221976 seconds", {"weights": 12.221976}),
        ("Load weight end. elapsed=2.5 s, type=Qwen2ForCausalLM, avail mem=15.61 GB", {"weights": 2.5}),
        ("Load weight end. type=DeepseekV3ForCausalLM, avail mem=80.84 GB, mem usage=94.50 GB.", {}),
        ("Graph capturing finished in no time", {}),
        ("GET /v1/models 200", {}),
    ],
)
def test_lines_of_other_versions(line: str, phases: dict[str, float]) -> None:
    assert read_log([f"INFO 01-01 00:00:00 [x.py:1] {line}"]).phases == pytest.approx(phases)


def test_what_was_compiled_anew_is_a_miss() -> None:
    found = read_log(["Compiling a graph for dynamic shape takes 1.5 s"] * 2)
    assert found.compile_cache == CacheUse(hits=0, misses=2)


def test_a_log_that_tells_nothing_says_nothing() -> None:
    found = read_log(["hello", ""])
    assert (found.phases, found.load, found.compile_cache) == ({}, None, None)


def test_only_lines_that_tell_of_a_start_are_kept() -> None:
    kept = telling_lines(VLLM_0_9)
    assert len(kept) == 7
    assert read_log(kept) == read_log(VLLM_0_9.splitlines())


def test_a_launcher_can_be_asked_for_all_of_them() -> None:
    assert len(MARKS) <= _MOST_MARKS
    assert all(0 < len(mark) <= _MARK_CHARACTERS for mark in MARKS)

"""`emberpool policy new` where nobody can be asked: what flags say, what is missing, and what is refused."""

import io
import re
from pathlib import Path

import pytest

from scaler.cli.app import main
from scaler.policy.compile import PolicySet, load_policies
from scaler.policy.document import parse_documents

NUMBERS = ["--max-seats", "6", "--target-in-flight", "32"]


@pytest.fixture(autouse=True)
def _nobody_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["policy", "new", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def made(capsys: pytest.CaptureFixture[str], *arguments: str) -> PolicySet:
    code, _, err = run(capsys, *arguments, "--output", "made.yaml")
    assert code == 0, err
    return load_policies([Path("made.yaml")])


def test_one_model_gets_a_fleet_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "chat", *NUMBERS)
    assert (code, out) == (0, "")
    assert err == (
        "wrote chat.yaml\n"
        "completion and hover in editors: emberpool policy schema --write schema, beside the file\n"
        "next: emberpool policy lint chat.yaml\n"
    )
    policies = load_policies([Path("chat.yaml")])
    fleet, policy = policies.fleets["chat"].spec, policies.policies["chat"].spec
    assert (fleet.max_seats, fleet.spare.min, fleet.seat.gpus) == (6, 1, 1)
    assert (policy.serving.min, policy.objectives.ttft.limit_seconds) == (1, 1.0)
    assert policy.engine.type == "VLLM"


def test_every_flag_is_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    policies = made(
        capsys, "chat", "--model", "org/Chat-7B", "--fleet", "gpus", "--namespace", "serving", "--engine", "SGLang",
        "--gpus", "2", "--target-in-flight", "16", "--max-seats", "9", "--spare", "3", "--serving-min", "2",
        "--ttft", "0.25", "--resized-by", "Keda",
    )  # fmt: skip
    fleet, policy = policies.fleets["gpus"], policies.policies["chat"]
    assert (fleet.metadata.namespace, policy.metadata.namespace) == ("serving", "serving")
    assert (fleet.spec.max_seats, fleet.spec.spare.min, fleet.spec.seat.gpus) == (9, 3, 2)
    assert fleet.spec.resized_by == "Keda"
    assert policy.models == ("org/Chat-7B",)
    assert policy.spec.engine.type == "SGLang"
    assert [(share.name, share.target_in_flight) for share in policy.spec.fleets] == [("gpus", 16)]
    assert (policy.spec.serving.min, policy.spec.objectives.ttft.limit_seconds) == (2, 0.25)


def test_several_models_share_one_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    policies = made(capsys, "--model", "org/Chat-7B", "--model", "code", "--fleet", "shared", *NUMBERS)
    assert policies.fleets.keys() == {"shared"}
    assert {name: policy.models for name, policy in policies.policies.items()} == {
        "chat-7b": ("org/Chat-7B",),
        "code": ("code",),
    }
    assert {policy.spec.engine.port for policy in policies.policies.values()} == {8001, 8002}


def test_a_shared_fleet_stands_behind_a_fleet_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    policies = made(capsys, "-m", "chat", "-m", "code", "--shared-fleet", "spares", "--spare", "2", *NUMBERS)
    assert {name: fleet.spec.max_seats for name, fleet in policies.fleets.items()} == {
        "chat": 6,
        "code": 6,
        "spares": 4,
    }
    assert [share.name for share in policies.policies["code"].spec.fleets] == ["code", "spares"]
    assert {
        name: fleet.spec.spare.min for name, fleet in policies.fleets.items() if fleet.spec.spare.min
    } == {"spares": 2}


def test_a_fleet_that_there_is_already_is_named_and_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "-m", "chat", "--shared-fleet", "spares", *NUMBERS, "--output", "first.yaml")
    code, out, _ = run(
        capsys,
        "code",
        "--shared-fleet",
        "spares",
        "--beside",
        "first.yaml",
        *NUMBERS,
        "--output",
        "second.yaml",
    )
    assert (code, out) == (0, "")
    policies = load_policies([Path("first.yaml"), Path("second.yaml")])
    assert policies.fleets.keys() == {"chat", "spares", "code"}
    assert policies.policies["code"].spec.engine.port == 8002
    assert "name: spares\n" not in Path("second.yaml").read_text("utf-8").partition("ScalingPolicy")[0]


def test_who_moves_in_beside_a_resident_is_told_of_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "chat", *NUMBERS)
    code, _, err = run(
        capsys, "code", "--fleet", "chat", "--beside", "chat.yaml", "--target-in-flight", "8", "--dry-run"
    )
    assert code == 0
    assert err == "fleet chat has kvWhenPaused: Keep; residents that share its seats need Release\n"


@pytest.mark.parametrize("flags", [["--dry-run"], ["--output", "-"]], ids=["dry-run", "stdout"])
def test_stdout_is_the_file_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    code, out, err = run(capsys, "chat", *NUMBERS, *flags)
    assert (code, err) == (0, "")
    assert out.startswith("# yaml-language-server: $schema=schema/emberpool.schema.json\n")
    assert len(parse_documents(out, "out")) == 2
    assert list(Path().iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.yaml").write_text("precious", "utf-8")
    assert run(capsys, "chat", *NUMBERS) == (
        2,
        "",
        "error: chat.yaml is there already\n\nhint: choose another --output, or overwrite it with --force\n\n",
    )
    assert Path("chat.yaml").read_text("utf-8") == "precious"


def test_unless_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.yaml").write_text("old", "utf-8")
    assert run(capsys, "chat", *NUMBERS, "--force")[0] == 0
    assert load_policies([Path("chat.yaml")]).policies.keys() == {"chat"}


def test_what_cannot_be_used_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "chat", "--max-seats", "2", "--spare", "2", "--serving-min", "1", "--target-in-flight", "8"
    )
    assert (code, out) == (2, "")
    assert re.match(
        r"error: chat\.yaml:\d+:13: spec\.maxSeats: floors and spares need 1 \(chat serving\.min\)"
        r" \+ 2 \(chat spare\.min\) = 3 seats",
        err,
    )
    assert err.endswith("\nnothing was written; --dry-run shows the text that these lines are of\n")
    assert not Path("chat.yaml").exists()


def test_a_default_that_does_not_fit_is_told_with_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "chat", "--max-seats", "2", "--spare", "2", "--target-in-flight", "8")
    assert (code, err) == (
        2,
        "error: --serving-min is 1 by default: must be a whole number from 0 to 0\n\nhint: give --serving-min\n\n",
    )


def test_where_no_seat_is_left_for_a_spare_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "chat", "--max-seats", "1", "--target-in-flight", "8")
    assert code == 0
    assert err.startswith("no spare seat: 1 at most leave no room beside those that always serve\n")
    assert load_policies([Path("chat.yaml")]).fleets["chat"].spec.spare.min == 0


def test_work_that_can_wait_is_written_with_all_that_makes_it_so(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "-m", "chat", "--shared-fleet", "spares", *NUMBERS, "--output", "first.yaml")
    code, _, err = run(
        capsys, "batch", "--fleet", "spares", "--beside", "first.yaml", "--target-in-flight", "64",
        "--preemptible", "--priority", "-10", "--serving-max", "3", "--signal", "Pushed",
        "--signal", "RedisStream=jobs/workers", "--signal", "RedisList=more=jobs",
        "--signal", 'Prometheus=QueueDepth=sum(q{a="b"})',
    )  # fmt: skip
    assert code == 0, err
    spec = load_policies([Path("first.yaml"), Path("batch.yaml")]).policies["batch"].spec
    assert (spec.preemptible, spec.priority, spec.serving.min, spec.serving.max) == (True, -10, 0, 3)
    written = [signal.model_dump(by_alias=True, exclude_unset=True) for signal in spec.signals]
    assert written == [
        {"name": "gateway", "type": "Pushed"},
        {"name": "queue", "type": "RedisStream", "key": "jobs", "group": "workers"},
        {"name": "queue-2", "type": "RedisList", "key": "more=jobs"},
        {"name": "prometheus", "type": "Prometheus", "measures": "QueueDepth", "query": 'sum(q{a="b"})'},
    ]


def test_what_comes_next_is_about_all_files_of_the_set(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "-m", "chat", "--shared-fleet", "spares", *NUMBERS, "--output", "the first.yaml")
    _, _, err = run(
        capsys,
        "code",
        "--shared-fleet",
        "spares",
        "--beside",
        "the first.yaml",
        *NUMBERS,
        "--output",
        "b.yaml",
    )
    assert err.splitlines()[-1] == "next: emberpool policy lint 'the first.yaml' b.yaml"
    assert main(["policy", "lint", "the first.yaml", "b.yaml"]) == 0


NOBODY = "standard input is no terminal, so nobody is asked; give each of them"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        pytest.param([], "missing: NAME", NOBODY, id="no-name"),
        pytest.param(["chat"], "missing: --target-in-flight, --max-seats", NOBODY, id="no-numbers"),
        pytest.param(["chat", "--max-seats", "2", "--yes"], "missing: --target-in-flight", NOBODY, id="no-default"),
        pytest.param(
            ["Chat", *NUMBERS],
            "NAME Chat: must be lower-case letters, digits and -, at most 63, a letter or digit first and last",
            "such as llama-8b",
            id="name",
        ),
        pytest.param(
            ["chat", "--model", "a b", *NUMBERS],
            "--model a b: must be printable ASCII without spaces, at most 256 characters",
            "such as llama-8b",
            id="model",
        ),
        pytest.param(
            ["-m", "x/chat", "-m", "y/chat", *NUMBERS],
            "two of the models would have policies of one name",
            "write a file for each of them",
            id="two-models-of-one-name",
        ),
        pytest.param(
            ["-m", "a", "-m", "b", "--fleet", "f", "--shared-fleet", "s", *NUMBERS],
            "--fleet names one fleet, and there are several models with --shared-fleet",
            "leave out --fleet: each model gets a fleet of its own, named after it, and the shared one behind it",
            id="one-fleet-for-several",
        ),
        pytest.param(
            ["chat", "--shared-fleet", "chat", *NUMBERS],
            "fleet chat can't stand behind itself",
            "give --fleet and --shared-fleet two names",
            id="behind-itself",
        ),
        pytest.param(
            ["chat", "--engine", "TGI", *NUMBERS],
            "invalid value for '--engine': 'TGI' is not one of 'Reference', 'VLLM', 'SGLang', 'Generic'",
            "see emberpool policy new --help",
            id="engine",
        ),
        pytest.param(
            ["chat", *NUMBERS, "--signal", "RedisLst=jobs"],
            "--signal RedisLst=jobs: there is no type RedisLst: did you mean RedisList?",
            "such as --signal RedisList=jobs",
            id="signal-type",
        ),
        pytest.param(
            ["chat", *NUMBERS, "--signal", "RedisStream=jobs"],
            "--signal RedisStream=jobs: must be RedisStream=KEY/GROUP",
            "such as --signal RedisList=jobs",
            id="signal-lacks",
        ),
        pytest.param(
            ["chat", *NUMBERS, "--signal", "Pushed=x"],
            "--signal Pushed=x: must be Pushed",
            "such as --signal RedisList=jobs",
            id="signal-has-too-much",
        ),
        pytest.param(
            ["-m", "a", "-m", "b", "--fleet", "f", *NUMBERS, "--signal", "RedisList=jobs"],
            "--signal RedisList=jobs is one model's, and there are several",
            "write a file for each of them: its load would count for all",
            id="one-queue-for-several",
        ),
        pytest.param(
            ["chat", *NUMBERS, "--output", "nowhere/chat.yaml"],
            "nowhere/chat.yaml can't be written: No such file or directory",
            "choose another --output",
            id="no-such-folder",
        ),
    ],
)  # fmt: skip
def test_what_must_be_mended_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    assert run(capsys, *arguments) == (2, "", f"error: {message}\n\nhint: {hint}\n\n")


def test_a_number_of_a_fleet_that_is_not_new_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "chat", *NUMBERS)
    code, _, err = run(capsys, "code", "--fleet", "chat", "--beside", "chat.yaml", *NUMBERS)
    assert code == 2
    assert (
        err == "error: --max-seats is for a new fleet, and there is none\n\nhint: leave out --max-seats\n\n"
    )


def test_spares_of_a_fleet_that_is_not_new_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "-m", "chat", "--shared-fleet", "spares", *NUMBERS, "--output", "first.yaml")
    code, _, err = run(
        capsys, "code", "--shared-fleet", "spares", "--beside", "first.yaml", "--spare", "3", *NUMBERS
    )
    assert code == 2
    assert err == (
        "error: --spare is for the fleet that holds the spares, and spares is there already\n\n"
        "hint: leave out --spare, or change spare.min in its document\n\n"
    )


def beside(namespace: str) -> list[str]:
    Path("spares.yaml").write_text(
        "apiVersion: emberpool.dev/v1alpha1\nkind: Fleet\n"
        f"metadata: {{name: spares, namespace: {namespace}}}\nspec: {{maxSeats: 4}}\n",
        "utf-8",
    )
    return ["--beside", "spares.yaml", "--target-in-flight", "32"]


@pytest.mark.parametrize("flag", ["--fleet", "--shared-fleet"])
def test_a_fleet_of_another_namespace_is_told_with_the_flag_for_it(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    arguments = [
        "chat",
        flag,
        "spares",
        *beside("serving"),
        *(["--max-seats", "2"] if flag != "--fleet" else []),
    ]
    assert run(capsys, *arguments) == (
        2,
        "",
        (
            "error: there is no fleet spares in namespace default, and one in serving\n\n"
            "hint: -n serving: a policy and its fleets share one namespace\n\n"
        ),
    )
    assert run(capsys, *arguments, "-n", "serving")[0] == 0


def test_a_misspelt_fleet_is_guessed_before_a_new_one_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, "chat", "--fleet", "spare", *beside("default")) == (
        2,
        "",
        (
            "error: --fleet spare: there is no such fleet\n\n"
            "hint: did you mean spares? If it is a new one, say with --max-seats how large it may be\n\n"
        ),
    )


def test_a_new_fleet_whose_name_looks_like_anothers_is_written_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(capsys, "chat", "--fleet", "spare", "--max-seats", "2", *beside("default"))
    assert code == 0
    assert err.startswith("fleet spare is a new one; there is a fleet spares\n")


def test_a_name_that_is_taken_is_found_beside(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "chat", *NUMBERS)
    code, _, err = run(
        capsys, "chat", "--fleet", "chat", "--beside", "chat.yaml", "--target-in-flight", "8", "--dry-run"
    )
    assert code == 2
    assert "the ScalingPolicy chat is already defined in chat.yaml:" in err


def test_more_spares_than_seats_are_told_of_the_spares(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "chat", *NUMBERS, "--spare", "7")
    assert code == 2
    assert err.startswith("error: --spare 7 is more than --max-seats 6\n")


def test_a_failed_dry_run_is_not_told_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["--max-seats", "2", "--spare", "2", "--serving-min", "1", "--target-in-flight", "8"]
    code, _, err = run(capsys, "chat", *numbers, "--dry-run")
    assert code == 2
    assert err.endswith("\nnothing was written\n")


@pytest.mark.parametrize("where", [[], ["--shared-fleet", "spares"]], ids=["alone", "bridged"])
def test_work_that_can_wait_gets_fleets_that_lend(
    capsys: pytest.CaptureFixture[str], where: list[str]
) -> None:
    run(capsys, "chat", *NUMBERS, "--preemptible", *where)
    main(["policy", "lint", "chat.yaml"])
    out = capsys.readouterr().out
    assert "[NothingToLend]" not in out
    assert out.count("warning: ") == 0


def test_a_fleet_that_lends_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "-m", "chat", "--shared-fleet", "spares", *NUMBERS, "--output", "first.yaml")
    beside = ["--fleet", "spares", "--beside", "first.yaml", "--target-in-flight", "64", "--preemptible"]
    _, _, err = run(capsys, "batch", *beside)
    assert "fleet spares keeps its spares for bursts and lends none" in err
    text = Path("first.yaml").read_text("utf-8").replace("  spare:\n", "  spare:\n    mode: Auto\n")
    Path("first.yaml").write_text(text, "utf-8")
    _, _, err = run(capsys, "batch", *beside, "--force")
    assert "lends none" not in err


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "emberpool policy new" in out.partition("Examples:")[2]

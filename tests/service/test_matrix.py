"""The matrix: what a tree declares, which cells it becomes, and which worker a cell fits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from service.matrix import config, expand
from service.matrix.config import ConfigError, TreeConfig
from service.matrix.expand import PlannedTree
from service.matrix.fit import choose, cuda_of, misfit
from worker.messages import Capabilities, Device, FailureClass, RuntimeSpec, SuiteSpec

HEAD = "schema = 1\n"
SUITE = HEAD + '[suites.unit]\npaths = ["tests"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = ", "not readable as TOML"),
        ("\xff", "not readable as TOML"),
        (SUITE.replace("1", "2", 1), "schema = 2: this service reads schema = 1"),
        ("[suites.unit]\n", "schema = None"),
        ('schema = "1"\n', "schema = '1'"),
        (HEAD, "suites: 0 of them; declare 1 to 200"),
        (HEAD + "suites = 3", "suites = 3: expected a table"),
        (HEAD + "".join(f"[suites.s{n}]\n" for n in range(201)), "suites: 201 of them"),
        (SUITE + "x = 1", "suites.unit.x is not a key; there are args"),
        (SUITE + 'kind = "cuda"\ngpu = "H200"', "suites.unit.gpu = 'H200': expected a list"),
        (SUITE + f'kind = "cuda"\ngpu = ["{"H" * 201}"]', "suites.unit has the pattern"),
        (SUITE + 'gpu = ["NVIDIA H200"]', "suites.unit.gpu: only a suite of kind cuda, cuda.2 and so on"),
        (SUITE + "gpu_memory_gib = 8", "suites.unit.gpu_memory_gib: only a suite of kind cuda"),
        (SUITE + 'kind = "cuda"\ngpu_memory_gib = -1', "suites.unit.gpu_memory_gib = -1: expected GiB"),
        (SUITE + 'kind = "cuda"\ngpu_memory_gib = true', "suites.unit.gpu_memory_gib = True: expected GiB"),
        (HEAD + "colour = 1\n" + SUITE.removeprefix(HEAD), "colour is not a key"),
        (HEAD + '[suites."a b"]', "suites.a b: a suite's name"),
        (HEAD + f'[suites.{"a" * 65}]', "64 at most"),
        (SUITE + 'kind = "CUDA"', "suites.unit.kind = 'CUDA'"),
        (SUITE + 'kind = "cuda.0"', "suites.unit.kind = 'cuda.0'"),
        (SUITE + "kind = 1", "suites.unit.kind = 1: expected a text"),
        (HEAD + '[suites.unit]\npaths = ["../x"]', "suites.unit.paths has '../x'"),
        (HEAD + '[suites.unit]\npaths = ["/etc"]', "suites.unit.paths has '/etc'"),
        (HEAD + '[suites.unit]\npaths = ["--rootdir=/"]', "suites.unit.paths has '--rootdir=/'"),
        (HEAD + '[suites.unit]\npaths = "tests"', "suites.unit.paths = 'tests': expected a list of texts"),
        (HEAD + '[suites.unit]\npaths = [""]', "suites.unit.paths = ['']"),
        (SUITE + 'network = "yes"', "suites.unit.network = 'yes': expected true or false"),
        (SUITE + "case_timeout_s = 0", "suites.unit.case_timeout_s = 0: expected seconds"),
        (SUITE + "case_timeout_s = true", "suites.unit.case_timeout_s = True"),
        (SUITE + "cell_timeout_s = inf", "suites.unit.cell_timeout_s = inf"),
        (SUITE + "cell_timeout_s = nan", "suites.unit.cell_timeout_s = nan"),
        (SUITE + "cell_timeout_s = 604801", "up to a week"),
        (SUITE + "silent_timeout_s = 0", "suites.unit.silent_timeout_s = 0: expected seconds, over 0"),
        (SUITE + "memory_mib = 63", "suites.unit.memory_mib = 63: expected a whole number, 64 at least"),
        (SUITE + "processes = true", "suites.unit.processes = True: expected a whole number"),
        (SUITE + "file_size_mib = 1.5", "suites.unit.file_size_mib = 1.5"),
        (SUITE + "open_files = 3000000000", "suites.unit.open_files = 3000000000"),
        (SUITE + "env = { A = 1 }", "suites.unit.env.A = 1: expected a variable's name and a text"),
        (SUITE + 'env = { "A-B" = "1" }', "suites.unit.env.A-B = '1'"),
        (SUITE + 'env = { A = "\\u0000" }', "suites.unit.env.A"),
        (SUITE + 'env = { LD_PRELOAD = "x" }', "suites.unit.env.LD_PRELOAD: this variable is the worker's"),
        (SUITE + 'env = { replaybench_token = "x" }', "the worker's to set"),
        (SUITE + 'env = { CUDA_VISIBLE_DEVICES = "0" }', "the worker's to set"),
        (SUITE + 'markers = "\\u0000"', "suites.unit.markers"),
        (SUITE + 'runtimes = ["python3.11"]', "suites.unit.runtimes: runtime 'python3.11' is not of the form"),
        (SUITE + '[matrix]\nruntimes = ["py3"]', "matrix.runtimes: runtime 'py3'"),
        (SUITE + f'[matrix]\nruntimes = ["py3.11-torch2{".1" * 100}"]', "of 213 characters; 200 at most"),
        (SUITE + "[matrix]\nruntimes = [" + "'py3.11'," * 201 + "]", "matrix.runtimes: 201 of them"),
        (SUITE + '[matrix]\nsuites = ["no"]', "matrix.suites names 'no', which is not declared; there are unit"),
        (SUITE + "[matrix]\nx = 1", "matrix.x is not a key"),
        (SUITE + "[install]\nlines = [1]", "install.lines = [1]: expected a list of texts"),
        (SUITE + "[install]\nx = 1", "install.x is not a key"),
        (SUITE + '[failure_rules]\nmatch = "x"', "write each rule as [[failure_rules]]"),
        (SUITE + '[[failure_rules]]\nmatch = "("\nclass = "assertion"', "failure_rules[0].match = '(': not a regular"),
        (SUITE + '[[failure_rules]]\nmatch = "x"\nclass = "assertion"\n' * 51, "failure_rules: 51 of them; write 50"),
        (SUITE + f'[[failure_rules]]\nmatch = "{"x" * 501}"\nclass = "assertion"', "...: 500 letters at most"),
        (SUITE + '[[failure_rules]]\nmatch = "x"\nclass = "odd"', "failure_rules[0].class = 'odd': expected one of"),
        (SUITE + '[[failure_rules]]\nclass = "assertion"', "and a match"),
        (SUITE + '[[failure_rules]]\nmatch = "x"\nclass = "assertion"\nx = 1', "failure_rules[0].x is not a key"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_key_and_value(text: str, said: str) -> None:
    """Each error names the key, the value that stands there and what is expected."""
    with pytest.raises(ConfigError) as caught:
        config.parse(text.encode("latin-1"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "schema = " + "[" * 50_000,
        "schema = " + "{a=" * 50_000,
        "schema = " + "1" * 5000,
        f"schema = 1\n[suites.a]\n[[failure_rules]]\nmatch = '{'(' * 400}'\nclass = 'assertion'",
        "schema = 1\n[suites.a]\n[[failure_rules]]\nmatch = 'a{9999999999}'\nclass = 'assertion'",
    ],
)
def test_a_file_that_means_harm_is_refused_like_any_other(text: str) -> None:
    """Its author may be anybody who opens a pull request: what a parser gives up on is no fault of ours."""
    with pytest.raises(ConfigError):
        config.parse(text.encode())


@pytest.mark.parametrize("text", ['"\\u0000\\u001b[2J" = 1', 'schema = 1\n[suites."a\\u0000"]'])
def test_a_refusal_holds_no_control_characters(text: str) -> None:
    """It is stored, logged and shown, and no database stores NUL."""
    with pytest.raises(ConfigError) as caught:
        config.parse(text.encode())
    assert str(caught.value).isprintable()
    assert "\\x00" in str(caught.value)


def test_a_file_is_read_whole() -> None:
    """Every key arrives where it belongs, with defaults for the rest."""
    found = config.parse(b"""
        schema = 1
        [matrix]
        runtimes = ["py3.11"]
        suites = ["cuda"]
        [install]
        lines = ["-e ."]
        [suites.cuda]
        paths = ["tests"]
        markers = "gpu"
        keyword = "fit"
        args = ["-x"]
        kind = "cuda.2"
        env = { A = "1" }
        mounts = ["coco"]
        network = true
        case_timeout_s = 5
        cell_timeout_s = 50
        silent_timeout_s = 7
        memory_mib = 2048
        processes = 100
        file_size_mib = 10
        open_files = 500
        gpu = ["NVIDIA H200", "NVIDIA B*"]
        gpu_memory_gib = 80
        runtimes = ["py3.12-torch2.9.1-cu129"]
        [suites.gate]
        [[failure_rules]]
        match = "boom"
        class = "cuda-error"
    """)
    suite = found.suites["cuda"]
    assert suite == SuiteSpec(
        "cuda", ("tests",), "cuda.2", "gpu", "fit", ("-x",), {"A": "1"}, ("coco",), True, 5.0, 50.0, 7.0,
        2048, 100, 10, 500, ("NVIDIA H200", "NVIDIA B*"), 80.0,
    )  # fmt: skip
    assert (suite.devices, found.suites["gate"]) == (2, SuiteSpec("gate", ()))
    assert found.runtimes == (RuntimeSpec("3.11"),)
    assert found.suite_runtimes == {"cuda": (RuntimeSpec("3.12", "2.9.1", "cu129"),)}
    assert (found.default_suites, found.install) == (("cuda",), ("-e .",))
    assert [(rule.match, rule.failure_class) for rule in found.failure_rules] == [("boom", FailureClass.CUDA_ERROR)]
    assert config.parse(SUITE.encode()).default_suites == ("unit",)


def tree(name: str = "aaaaaaa", *suites: SuiteSpec, runtimes: str = "py3.11 py3.12", **own: str) -> PlannedTree:
    """A tree that declares these suites; ``own`` names a suite's own runtimes."""
    named = suites or (SuiteSpec("gate", ()), SuiteSpec("unit", ()))
    parsed = {suite: tuple(map(RuntimeSpec.parse, text.split())) for suite, text in own.items()}
    return PlannedTree(
        name,
        TreeConfig(tuple(map(RuntimeSpec.parse, runtimes.split())), tuple(suite.name for suite in named),
                   {suite.name: suite for suite in named}, parsed, (), ()),
    )  # fmt: skip


def names(*trees: PlannedTree, **choice: list[str] | list[RuntimeSpec]) -> list[str]:
    """The names of the cells."""
    return [cell.name for cell in expand.expand(trees, **choice)]  # type: ignore[arg-type]


def test_cells_come_in_the_order_of_trees_runtimes_suites() -> None:
    """Two trees, two runtimes, two suites: eight cells, and each says which tree it is of."""
    expected = [
        "/".join(parts) for parts in itertools.product(("aaaaaaa", "bbbbbbb"), ("py3.11", "py3.12"), ("gate", "unit"))
    ]
    assert names(tree(), tree("bbbbbbb")) == expected
    assert [cell.tree for cell in expand.expand([tree(), tree("bbbbbbb")])] == [0] * 4 + [1] * 4


def test_a_suites_own_runtimes_stand_in_for_the_matrix() -> None:
    """They do so for that suite alone, and what the request names goes before both."""
    own = tree(unit="py3.13")
    assert names(own) == ["aaaaaaa/py3.11/gate", "aaaaaaa/py3.12/gate", "aaaaaaa/py3.13/unit"]
    assert names(own, runtimes=[RuntimeSpec("3.14")]) == ["aaaaaaa/py3.14/gate", "aaaaaaa/py3.14/unit"]


def test_what_is_named_twice_runs_once() -> None:
    """A suite or a runtime that is given twice makes one cell."""
    assert names(tree(runtimes="py3.11 py3.11"), suites=["unit", "unit"]) == ["aaaaaaa/py3.11/unit"]


def test_include_then_exclude() -> None:
    """A cell stays that some include matches, where there is one, and no exclude."""
    assert names(tree(), include=["*/py3.11/*"], exclude=["*/unit"]) == ["aaaaaaa/py3.11/gate"]
    assert names(tree(), exclude=["*/py3.11/*", "*/gate"]) == ["aaaaaaa/py3.12/unit"]
    assert names(tree(), exclude=["*"]) == []


@pytest.mark.parametrize("where", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_is_misspelt(where: str) -> None:
    """It is refused with an example of a name, also where other patterns match."""
    with pytest.raises(expand.UnmatchedPattern, match=r"'\*/py2\.7/\*' matches no cell.*aaaaaaa/py3\.11/gate"):
        names(tree(), **{where: ["*/gate", "*/py2.7/*"]})


def test_an_unknown_suite_is_refused_with_those_there_are() -> None:
    """The tree is named, since another may declare the suite."""
    with pytest.raises(expand.UnknownSuite, match=r"tree aaaaaaa declares no suite 'no'; it has gate, unit$"):
        names(tree(), suites=["no"])


def test_a_suite_that_a_probe_adds_is_unknown_to_the_commit() -> None:
    """The commit is named, whose file was read, and how to have the suite."""
    said = r"^commit aaaaaaa declares no suite 'no'; it has gate, unit \(a probe's changes to .* commit the file"
    with pytest.raises(expand.UnknownSuite, match=said):
        names(tree("aaaaaaa+probe:1f2e3d"), suites=["no"])


def test_a_cuda_suite_on_a_cpu_build_is_refused_unless_excluded() -> None:
    """Such a cell could never be run; no build at all leaves it to the worker."""
    cuda = tree("aaaaaaa", SuiteSpec("fit", (), kind="cuda"), runtimes="py3.11-torch2.9.1-cpu py3.11-torch2.9.1")
    with pytest.raises(expand.UnfitRuntime, match=r"exclude '\*/py3\.11-torch2\.9\.1-cpu/fit'"):
        names(cuda)
    assert names(cuda, exclude=["*-cpu/fit"]) == ["aaaaaaa/py3.11-torch2.9.1/fit"]


def test_a_matrix_beyond_all_measure_is_not_even_listed() -> None:
    """Excluding does not help where listing alone would fill the memory."""
    runtimes = [RuntimeSpec(f"3.{n}") for n in range(200)]
    suites = tuple(SuiteSpec(f"s{n}", ()) for n in range(200))
    with pytest.raises(expand.TooManyCells, match="over 100000 cells"):
        expand.expand([tree("aaaaaaa", *suites)] * 3, runtimes=runtimes, exclude=["*"])


def test_a_trees_name() -> None:
    """Seven digits of the commit, six of the probe."""
    assert expand.tree_name("bb3c0b8" + "0" * 33, None) == "bb3c0b8"
    assert expand.tree_name("bb3c0b8" + "0" * 33, "1f2e3d" + "0" * 58) == "bb3c0b8+probe:1f2e3d"


def device(
    uuid: str, cuda: str = "12.8", *, model: str = "NVIDIA H200", memory_mib: int = 143771, drained: str = ""
) -> Device:
    """A device of some worker."""
    return Device(0, uuid, model, memory_mib, "570.1", cuda, drained=drained)


def cuda(*devices: Device, **more: object) -> dict[str, object]:
    """What a worker with these devices offers."""
    return {"kinds": ("cuda",), "devices": devices, **more}


TORCH = RuntimeSpec("3.11", "2.9.1", "cu129")
CU130 = RuntimeSpec("3.12", "2.11.0", "cu130")
OPEN = RuntimeSpec("3.12", "2.11.0")
ONE: dict[str, object] = {"kind": "cuda"}


@pytest.mark.parametrize(
    ("offered", "suite", "runtime", "free", "reason"),
    [
        ({}, {}, RuntimeSpec("3.11"), None, None),
        ({"kinds": ()}, {}, RuntimeSpec("3.11"), None, "serves nothing, not cpu"),
        ({}, {"kind": "cuda"}, TORCH, None, "serves cpu, not cuda"),
        ({"builds": False}, {}, RuntimeSpec("3.11"), None, "has no runtime py3.11 and builds none"),
        ({"builds": False, "host_runtimes": (RuntimeSpec("3.11"),)}, {}, RuntimeSpec("3.11"), None, None),
        ({}, {"mounts": ("b", "a")}, RuntimeSpec("3.11"), None, "has no data mount a, b"),
        ({"mounts": ("a", "b")}, {"mounts": ("b", "a")}, RuntimeSpec("3.11"), None, None),
        ({"network": False}, {"network": True}, RuntimeSpec("3.11"), None, "has no network"),
        ({"kinds": ("cuda",)}, {"kind": "cuda"}, TORCH, None, "has 0 of the 1 CUDA devices needed"),
        ({"kinds": ("cuda",), "devices": (device("a"),)}, {"kind": "cuda"}, TORCH, None, None),
        ({"kinds": ("cuda",), "devices": (device("a"),)}, {"kind": "cuda"}, TORCH, set(), "has 0 of the 1"),
        ({"kinds": ("cuda",), "devices": (device("a"),)}, {"kind": "cuda"}, TORCH, {"a"}, None),
        ({"kinds": ("cuda.2",), "devices": (device("a"),)}, {"kind": "cuda.2"}, TORCH, None, "has 1 of the 2"),
        ({"kinds": ("cuda.2",), "devices": (device("a"), device("b"))}, {"kind": "cuda.2"}, TORCH, {"a"}, "has 1 of"),
        ({"kinds": ("cuda",), "devices": (device("a", "11.8"),)}, {"kind": "cuda"}, TORCH, None,
         "its driver serves CUDA 11.8, and Python 3.11 / torch 2.9.1+cu129 needs 12 or later"),
        ({"kinds": ("cuda",), "devices": (device("a", "13.0"),)}, {"kind": "cuda"}, TORCH, None, None),
        ({"kinds": ("cuda",), "devices": (device("a", "²"),)}, {"kind": "cuda"}, TORCH, None, "its driver serves"),
        (cuda(device("a", "12.9")), ONE, CU130, None,
         "its driver serves CUDA 12.9, and Python 3.12 / torch 2.11.0+cu130 needs 13 or later"),
        (cuda(device("a", "12.0")), ONE, TORCH, None, None),
        (cuda(device("a", "10.1")), ONE, RuntimeSpec("3.7", "1.5.0", "cu102"), None, "needs 10.2 or later"),
        (cuda(device("a", "12.4"), host_runtimes=(CU130, OPEN)), ONE, OPEN, None, "needs 13 or later"),
        (cuda(device("a", drained="Xid 79")), ONE, TORCH, None,
         "has 0 of the 1 CUDA devices needed; GPU 0 drained: Xid 79"),
        (cuda(device("a", drained="Xid 79"), device("b")), ONE, TORCH, None, None),
        (cuda(device("a")), ONE | {"gpu": ("NVIDIA H100*", "NVIDIA B200")}, TORCH, None,
         "has 0 of the 1 needed of NVIDIA H100* or NVIDIA B200: it has NVIDIA H200 with 140.4 GiB"),
        (cuda(device("a")), ONE | {"gpu": ("NVIDIA H*",)}, TORCH, None, None),
        (cuda(device("a")), ONE | {"gpu_memory_gib": 141.0}, TORCH, None,
         "has 0 of the 1 needed with 141 GiB: it has NVIDIA H200 with 140.4 GiB"),
        (cuda(device("a")), ONE | {"gpu_memory_gib": 140.0}, TORCH, None, None),
    ],
)  # fmt: skip
def test_whether_a_worker_can_serve_a_cell(
    offered: dict[str, object], suite: dict[str, object], runtime: RuntimeSpec, free: set[str] | None, reason: str
) -> None:
    """The reason says what is missing; devices count only where they are free and their driver is new enough."""
    capabilities = Capabilities(**{"kinds": ("cpu",), **offered})  # type: ignore[arg-type]
    found = misfit(capabilities, SuiteSpec("unit", (), **suite), runtime, free)  # type: ignore[arg-type]
    assert (found is None) if reason is None else (found is not None and reason in found)


@pytest.mark.parametrize(
    ("build", "major"),
    [(None, None), ("cpu", None), ("rocm6.4", None), ("cu92", (9, 2)), ("cu118", (11, 8)), ("cu129", (12, 9)),
     ("cu1", None)],
)  # fmt: skip
def test_the_cuda_that_a_build_carries(build: str | None, major: tuple[int, int] | None) -> None:
    """A build that says no version asks for none; it is never an error, which would stop all claims."""
    assert cuda_of(RuntimeSpec("3.11", "2.9.1", build)) == major


@pytest.mark.parametrize(
    ("kind", "more", "free", "chosen"),
    [
        ("cpu", {}, {"a"}, ()),
        ("cuda", {}, {"big", "a", "b", "old"}, ("a",)),
        ("cuda", {"gpu_memory_gib": 40.0}, {"big", "a", "b"}, ("big",)),
        ("cuda", {}, {"big"}, ("big",)),
        ("cuda.2", {}, {"big", "a", "b"}, ("a", "b")),
        ("cuda.2", {}, {"big", "b"}, ("big", "b")),
        ("cuda.2", {}, {"b", "broken"}, None),
        ("cuda", {"gpu": ("NVIDIA H200",)}, {"a", "b"}, None),
    ],
)
def test_which_devices_a_cell_gets(
    kind: str, more: dict[str, Any], free: set[str], chosen: tuple[str, ...] | None
) -> None:
    """Those that suffice and no larger; several of one model where that can be had; never one that is drained."""
    small = {"model": "NVIDIA L4", "memory_mib": 23034}
    devices = (
        device("old", "11.8", model="NVIDIA T4", memory_mib=15360),
        device("big"),
        device("a", **small),
        device("b", **small),
        device("broken", drained="Xid 48"),
    )
    capabilities = Capabilities(("cpu", "cuda", "cuda.2"), devices)
    assert choose(capabilities, SuiteSpec("unit", (), kind=kind, **more), TORCH, free) == chosen

"""What the scripts behind `make` decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_reports import Case, allowed, expected, read, summary
from scripts.demo import HERE, cpu_runtime, cuda_hosts, cuda_runtime
from worker.messages import RuntimeSpec

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.service.test_a" name="test_good"/>
<testcase classname="tests.service.test_a" name="test_bad"><failure message="no"/></testcase>
<testcase classname="tests.service.test_a" name="test_broken"><error message="no"/></testcase>
<testcase classname="tests.library.test_b" name="test_gpu[16]"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="tests.library.test_b" name="test_known"><skipped type="pytest.xfail" message="later"/></testcase>
<testcase classname="" name="tests.library.test_c"><skipped type="pytest.skip" message="no torch"/></testcase>
</testsuite></testsuites>"""


def parse(*ids: str) -> list[RuntimeSpec]:
    return [RuntimeSpec.parse(text) for text in ids]


def test_a_report_is_read_case_by_case(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(REPORT)
    cases = list(read(tmp_path / "a.xml"))
    assert summary(cases) == "2 passed, 2 failed, 2 skipped"
    assert [(case.name, case.reason) for case in cases if case.outcome == "skipped"] == [
        ("tests.library.test_b::test_gpu[16]", "no GPU"),
        ("tests.library.test_c", "no torch"),
    ]


def test_every_allowed_skip_has_a_reason() -> None:
    assert list(allowed("# why\n\ntests.a::* needs a GPU\n")) == [("tests.a::*", "needs a GPU")]
    with pytest.raises(SystemExit, match="gives no reason"):
        list(allowed("tests.a::*"))


def test_a_skip_is_expected_by_name_and_reason() -> None:
    rules = [("tests.library.*", "needs a GPU")]
    assert expected(Case("tests.library.test_b::test_x", "skipped", "needs a GPU here"), rules)
    assert not expected(Case("tests.library.test_b::test_x", "skipped", "needs luck"), rules)
    assert not expected(Case("tests.service.test_b::test_x", "skipped", "needs a GPU here"), rules)


@pytest.mark.parametrize(
    ("ids", "chosen"),
    [
        (("py3.10-torch2.13.0-cpu-pl2.6.6",), f"py{HERE}-torch2.13.0-cpu-pl2.6.6"),
        (("py3.9-torch2.14.1-cu130-pl2.6.6", "py3.9-torch2.9.1-cpu"), f"py{HERE}-torch2.9.1-cpu"),
        (("py3.9-torch2.9.1-cu129", "py3.9-torch2.10.0-cu129"), f"py{HERE}-torch2.10.0-cpu"),
        (("py3.9",), f"py{HERE}"),
    ],
)
def test_the_demo_without_a_gpu_takes_a_cpu_runtime_of_this_python(ids: tuple[str, ...], chosen: str) -> None:
    assert cpu_runtime(parse(*ids)).id == chosen


def test_the_demo_with_a_gpu_takes_a_cuda_build_or_the_plain_one() -> None:
    assert cuda_runtime(parse("py3.9-torch2.13.0-cpu", "py3.9-torch2.9.1-cu129")).id == f"py{HERE}-torch2.9.1-cu129"
    assert cuda_runtime(parse("py3.9-torch2.13.0-cpu-pl2.6.6")).id == f"py{HERE}-torch2.13.0-pl2.6.6"


def test_the_demo_takes_each_host_runtime_once_and_by_its_exact_name() -> None:
    offered = parse("py3.12-torch2.11.0-cu130-pl2.6.6", "py3.12-torch2.11.0-pl2.6.6", "py3.12-torch2.11.0-cu130")
    assert cuda_hosts([*offered, *offered]) == offered[:1]

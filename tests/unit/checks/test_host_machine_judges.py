"""`host.governor`, `.drift`, `.dimms`, `.memory`, `.load`, `.container`: one machine's fitness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from preflight.checks.host.test_drift import READINGS, judge_drift
from preflight.checks.host.test_memory import judge_dimms, judge_memory, min_complete_mib, total_mib
from preflight.checks.host.test_processes import judge_load
from preflight.checks.host.test_setup import governor_names, judge_container, judge_governor
from preflight.core.thresholds import SHIPPED
from preflight.facts.machine import Container, Dimm, Edac, Governor, KernelLog, LogLine, Worker
from preflight.verdict import Outcome
from tests.unit.facts.builders import facts, group
from tests.unit.facts.machines import TIB_MIB, load, machine, memory, stack

if TYPE_CHECKING:
    from preflight.facts import Facts, Group, Majority
    from preflight.verdict import Verdict

DAY = 86400


def node(**changes: object) -> Facts:
    """A node whose machine differs in this from a healthy one."""
    return facts(machine=machine(**changes))


@pytest.mark.proves("host.governor", passes="192 CPUs under performance")
def test_steady_clocks() -> None:
    """A machine whose hypervisor steers the clocks has nothing to judge."""
    assert judge_governor(facts()).sentence == "192 CPUs under performance"
    assert judge_governor(node(governors=())).outcome is Outcome.NOT_RUN


@pytest.mark.proves("host.governor", finds="CPUs under powersave, all of them or a few")
def test_cpus_that_clock_down() -> None:
    """Which, how many of all, under which driver, and what the peers have."""
    mixed = (Governor("performance", "intel_pstate", 96), Governor("powersave", "intel_pstate", 96))
    alone = judge_governor(node(governors=mixed))
    assert (alone.outcome, alone.sentence) == (
        "warn",
        "96 CPUs under powersave (intel_pstate) of 192; performance is expected",
    )
    usual = group(*[facts()] * 12, node(governors=mixed)).majority(governor_names)
    among = judge_governor(node(governors=mixed), usual)
    assert among.sentence.endswith("; 12 of 13 nodes of its group have performance")


@pytest.mark.proves("host.governor", finds="a node without a frequency driver that its peers have")
def test_a_node_whose_bios_keeps_the_clocks_to_itself() -> None:
    """Nothing to read there, while the others have it: settings of the BIOS differ."""
    usual = group(*[facts()] * 3, node(governors=())).majority(governor_names)
    assert judge_governor(node(governors=()), usual).outcome is Outcome.WARN


@pytest.mark.proves("host.governor", unknown="/sys could not be read")
def test_unread_governors_are_unknown() -> None:
    """Not read is not "none"."""
    assert judge_governor(node(governors=None)).outcome is Outcome.UNKNOWN
    assert judge_governor(facts(machine=None)).outcome is Outcome.UNKNOWN


def votes(of: Group) -> dict[str, Majority[str] | None]:
    """As the check's own test counts them."""
    return {word: of.majority(read) for word, read in READINGS.items()}


@pytest.mark.proves("host.drift", passes="a node like its peers")
def test_a_node_like_its_peers() -> None:
    """Nodes that do not report their BIOS abstain; a node alone has no other to differ from."""
    quiet = node(stack=stack(bios="", product=""))
    of = group(facts(), facts(), quiet)
    for each in (facts(), quiet):
        assert judge_drift(each, votes(of)).outcome is Outcome.OK
    assert judge_drift(facts(), votes(group(facts()))).outcome is Outcome.NOT_RUN


@pytest.mark.proves(
    "host.drift", finds="another kernel, system, C library, BIOS, fewer CPUs online"
)
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (facts(kernel="5.15.0-91"), "kernel 5.15.0-91; 12 of 13 nodes of its group have 6.1"),
        (node(stack=stack(os="Rocky Linux 9.3")), "system Rocky Linux 9.3; 12 of 13"),
        (node(stack=stack(libc="glibc 2.34")), "C library glibc 2.34; 12 of 13"),
        (node(stack=stack(bios="1.2.0")), "BIOS 1.2.0; 12 of 13 nodes of its group have 1.6.7"),
        (node(stack=stack(cpus_online=96)), "CPUs online 96; 12 of 13 nodes of its group have 192"),
    ],
)
def test_the_odd_one_out(odd: Facts, words: str) -> None:
    """Only the odd node is reported, with what the others have."""
    usual = votes(group(*[facts()] * 12, odd))
    verdict = judge_drift(odd, usual)
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence.startswith(words)
    assert judge_drift(facts(), usual).outcome is Outcome.OK


def test_a_group_that_agrees_on_nothing_is_reported_as_such() -> None:
    """Two and two: no node is odd, and none is like its group."""
    other = facts(kernel="5.15.0-91")
    verdict = judge_drift(other, votes(group(facts(), facts(), other, other)))
    assert verdict.outcome is Outcome.WARN
    assert "no more than 2 of 4 nodes agree on one" in verdict.sentence


@pytest.mark.proves("host.drift", unknown="its software could not be read")
def test_an_unread_stack_is_unknown() -> None:
    """Whoever tells nothing is not like its peers."""
    usual = votes(group(facts(), facts()))
    assert judge_drift(node(stack=None), usual).outcome is Outcome.UNKNOWN
    assert judge_drift(facts(machine=None), usual).outcome is Outcome.UNKNOWN


def dimms_among(one: Facts, *others: Facts) -> Verdict:
    """As the check's own test joins a node and its group."""
    of = group(one, *others)
    usual = of.median(total_mib)
    alike = (
        0 if usual is None else of.count_at_least(total_mib, min_complete_mib(usual, limit=SHIPPED))
    )
    return judge_dimms(one, (alike, usual), limit=SHIPPED)


@pytest.mark.proves("host.dimms", passes="memory like its peers', few corrected errors in months")
def test_whole_memory() -> None:
    """One bit flipped by a cosmic ray in a month is what ECC is for."""
    assert dimms_among(facts(), facts(), facts()).outcome is Outcome.OK
    rays = Edac(32, (Dimm("CPU0_DIMM_A1", corrected=9, uncorrected=0, counted_s=90 * DAY),))
    assert dimms_among(node(edac=rays), facts()).outcome is Outcome.OK
    kept_back = node(memory=memory(total_mib=TIB_MIB - 2048))
    assert dimms_among(kept_back, facts(), facts()).outcome is Outcome.OK


@pytest.mark.proves("host.dimms", finds="an uncorrected error on a DIMM, which is named")
def test_lost_data() -> None:
    """One is enough."""
    lost = Edac(32, (Dimm("CPU0_DIMM_A1", corrected=3, uncorrected=1),))
    verdict = dimms_among(node(edac=lost))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == "1 uncorrected error on CPU0_DIMM_A1, 0 expected"


@pytest.mark.proves("host.dimms", finds="a node with one DIMM fewer than its peers")
def test_a_missing_dimm() -> None:
    """1 of 32 is a fault among many; of two nodes one cannot say who is right."""
    short = node(memory=memory(total_mib=TIB_MIB - 32768))
    verdict = dimms_among(short, facts(), facts(), facts())
    assert verdict.outcome is Outcome.FAIL
    assert verdict.sentence == (
        "992.0 GiB of memory; 1024.0 GiB is usual in its group (3 nodes with it)"
    )
    assert dimms_among(facts(), short, facts(), facts()).outcome is Outcome.OK
    assert dimms_among(short, facts()).outcome is Outcome.WARN


@pytest.mark.proves("host.dimms", finds="a DIMM with dozens of corrected errors a day")
def test_a_dimm_that_wears_out() -> None:
    """A rate, not a total; a counter without a start counts since boot."""
    bursts = Edac(32, (Dimm("mc0/dimm3", corrected=40, uncorrected=0, counted_s=2 * DAY),))
    verdict = dimms_among(node(edac=bursts))
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence.startswith("40 corrected errors on mc0/dimm3 in 2 d 0 h; at most 10")
    since_boot = Edac(32, (Dimm("mc0/dimm3", corrected=40, uncorrected=0),))
    up = replace(node(edac=since_boot), time_s=30.0 * DAY, boot_s=0.0)
    assert dimms_among(up).outcome is Outcome.OK


def test_errors_that_are_in_the_kernel_log_are_reported_once() -> None:
    """`host.hardware_errors` judges those lines; a DIMM that is missing is still found."""
    line = LogLine("EDAC MC0: 1 UE memory read error on CPU0_DIMM_A1 (channel:0 page:0x1)", 5.0)
    lost = Edac(32, (Dimm("CPU0_DIMM_A1", corrected=0, uncorrected=1),))
    logged = replace(node(edac=lost), kernel_log=KernelLog("kmsg", seen=9, lines=(line,)))
    assert dimms_among(logged).outcome is Outcome.NOT_RUN
    half = machine(edac=lost, memory=memory(total_mib=TIB_MIB // 2))
    assert dimms_among(replace(logged, machine=half), facts(), facts()).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "line",
    [
        "MCE: Killing python3:4711 due to hardware memory corruption fault at 7f31e000",
        "EDAC MC0: 1 CE memory read error on CPU0_DIMM_A1 (channel:0 page:0x1)",
    ],
)
def test_a_line_that_fails_no_node_hides_no_lost_data(line: str) -> None:
    """Any process may have itself killed so; a corrected error beside a lost word is the less."""
    lost = Edac(32, (Dimm("CPU0_DIMM_A1", corrected=9, uncorrected=1),))
    log = KernelLog("kmsg", seen=9, lines=(LogLine(line, 5.0),))
    assert dimms_among(replace(node(edac=lost), kernel_log=log)).outcome is Outcome.FAIL


@pytest.mark.proves("host.dimms", unknown="a counter that exists could not be read")
def test_unread_memory_is_unknown() -> None:
    """Without counters and peers nothing was judged, which is no pass either."""
    assert dimms_among(node(edac=None)).outcome is Outcome.UNKNOWN
    assert dimms_among(node(memory=None)).outcome is Outcome.UNKNOWN
    assert dimms_among(node(edac=Edac(0))).outcome is Outcome.NOT_RUN


@pytest.mark.proves("host.memory", passes="an idle node, and a desktop half in use")
def test_memory_enough() -> None:
    """By its peers where there are some, else by a share of its own."""
    assert judge_memory(facts(), TIB_MIB, limit=SHIPPED).outcome is Outcome.OK
    assert (
        judge_memory(node(memory=memory(available_mib=TIB_MIB // 2)), limit=SHIPPED).outcome
        is Outcome.OK
    )


@pytest.mark.proves("host.memory", finds="memory held by others: shared, huge pages, or ordinary")
@pytest.mark.parametrize(
    ("changes", "usual", "outcome", "words"),
    [
        ({"available_mib": 20_000}, None, "fail", "19.5 GiB of 1024.0 GiB available; at least 5 %"),
        (
            {"available_mib": 20_000, "shared_mib": 900_000},
            None,
            "fail",
            "878.9 GiB are in shared memory",
        ),
        (
            {"available_mib": 200_000, "huge_pages_mib": 800_000},
            1_000_000,
            "warn",
            "781.2 GiB are reserved as huge pages; 976.6 GiB is usual in its group",
        ),
        ({"available_mib": 200_000}, None, "warn", "an idle node has over 20 %"),
    ],
)
def test_memory_in_use(
    changes: dict[str, object], usual: float | None, outcome: str, words: str
) -> None:
    """What holds most of it is named where it is known."""
    verdict = judge_memory(node(memory=memory(**changes)), usual, limit=SHIPPED)
    assert verdict.outcome == outcome
    assert words in verdict.sentence
    assert (verdict.cause == "/dev/shm is full") == ("shared_mib" in changes)


@pytest.mark.proves("host.memory", finds="a node that swaps or stalls although memory is left")
def test_memory_under_strain() -> None:
    """The kernel's own account of waiting, and what lies in swap."""
    stalls = judge_memory(node(memory=memory(stalled_percent=34.0)), limit=SHIPPED)
    assert stalls.sentence.startswith("something waited for memory in 34 % of the last 10 s")
    swaps = judge_memory(node(memory=memory(swap_used_mib=8192)), limit=SHIPPED)
    assert swaps.sentence.startswith("8.0 GiB are swapped out, at most 1 GiB is usual")
    assert {stalls.outcome, swaps.outcome} == {Outcome.WARN}


@pytest.mark.proves("host.memory", unknown="/proc/meminfo could not be read")
def test_unread_use_of_memory_is_unknown() -> None:
    """No reading, no pass."""
    assert judge_memory(node(memory=None), limit=SHIPPED).outcome is Outcome.UNKNOWN
    assert judge_memory(facts(machine=None), limit=SHIPPED).outcome is Outcome.UNKNOWN


@pytest.mark.proves("host.load", passes="an idle node")
def test_an_idle_node() -> None:
    """Monitors use a tenth of a CPU."""
    assert judge_load(facts(), limit=SHIPPED).sentence == "others' processes use 0.1 of 192 CPUs"


@pytest.mark.proves("host.load", finds="another user's process on 30 CPUs, which is named")
def test_a_busy_node() -> None:
    """With pid, name, user and how much; the advice shows where to look."""
    hog = Worker(4242, "python", "bob", 30.2)
    verdict = judge_load(node(load=load(foreign_cpus=30.5, busiest=(hog,))), limit=SHIPPED)
    assert verdict.outcome is Outcome.WARN
    assert verdict.sentence == (
        "others' processes use 30.5 of 192 CPUs, at most 19.2 expected: "
        "pid 4242 (python, user bob, 30.2 CPUs)"
    )
    assert "ps -fp 4242" in verdict.advice


def test_as_much_as_is_expected_is_no_finding() -> None:
    """What rounds to the limit is the limit: no sentence says "use 19.2, at most 19.2"."""
    assert judge_load(node(load=load(foreign_cpus=19.24)), limit=SHIPPED).outcome is Outcome.OK
    assert judge_load(node(load=load(foreign_cpus=19.3)), limit=SHIPPED).outcome is Outcome.WARN


@pytest.mark.proves("host.load", unknown="/proc could not be read")
def test_an_unseen_load_is_unknown() -> None:
    """A node that cannot read its processes is unknown, not idle."""
    assert judge_load(node(load=None), limit=SHIPPED).outcome is Outcome.UNKNOWN
    assert judge_load(facts(machine=None), limit=SHIPPED).outcome is Outcome.UNKNOWN


@pytest.mark.proves("host.container", passes="a machine, and a container that hides no process")
def test_nothing_is_hidden() -> None:
    """Both say where we are."""
    assert judge_container(facts()).sentence == "no container; nothing hides other processes"
    open_one = node(container=Container("apptainer", hidden_by=""))
    assert judge_container(open_one).sentence.startswith("in a container (apptainer)")


@pytest.mark.proves(
    "host.container", finds="other users' processes are hidden, by a pod or by hidepid"
)
@pytest.mark.parametrize(
    ("container", "words", "grant"),
    [
        (
            Container("kubernetes", "process table"),
            "in a container (kubernetes): ",
            "hostPID: true",
        ),
        (Container("docker", "process table"), "100 seen", "--pid=host"),
        (Container("", "hidepid"), "other users' processes (hidepid)", "gid="),
        (Container("", "process table"), "no container: processes of the machine", "not in the"),
    ],
)
def test_hidden_processes_are_reported_with_what_to_grant(
    container: Container, words: str, grant: str
) -> None:
    """A missing privilege: unknown, with what to grant, and no fault of the node."""
    verdict = judge_container(node(container=container))
    assert verdict.outcome is Outcome.UNKNOWN
    assert words in verdict.sentence
    assert grant in verdict.grant
    assert not verdict.makes_not_ready


@pytest.mark.proves("host.container", unknown="the process table's namespace could not be read")
def test_an_unread_namespace_is_unknown() -> None:
    """And that is not waved through as a missing privilege."""
    for unread in (node(container=None), node(container=Container()), facts(machine=None)):
        assert judge_container(unread).makes_not_ready

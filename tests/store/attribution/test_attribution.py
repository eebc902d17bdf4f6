"""Which files are a run's, by its evidence and that of others: pure decisions over values."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.record.claims import Claims, FileFacts, Rank, Verdict, decide
from mcp_server.record.written_files import WrittenFile
from mcp_server.store.attribution.attribution import OwnFiles, describe_uncertain

BEGUN_S, ENDED_S = 1000.0, 2000.0
AT_NS = 1500 * 10**9


def file(path: str, *, changed_s: float = 1500.0, size: int = 10, inode: int | None = None) -> FileFacts:
    facts = FileFacts(path, inode or hash(path) % 10**6, size, int(changed_s * 1e9))
    match = FileFacts.of(path, os.stat_result(range(10))) if "tfevents" in path else facts
    return replace(facts, begun_s=match.begun_s, writers=match.writers)


def run(run_id: str, *written: FileFacts, appends: bool = False, **facts: object) -> Claims:
    files = [WrittenFile(one.path, one.inode, one.size, one.changed_ns, append=appends) for one in written]
    return Claims(
        run_id,
        "/p",
        BEGUN_S,
        ENDED_S,
        ENDED_S,
        written={one.path: one for one in files},
        **facts,  # type: ignore[arg-type]
    )


def verdict(one: FileFacts, own: Claims, *others: Claims) -> Verdict:
    return decide(one, own, others)[0]


ALONE = run("a-1111")
OTHER = run("b-2222")


def test_what_a_run_wrote_is_its_own_whoever_else_was_there() -> None:
    mine = file("/p/runs/x/model.pt")
    assert verdict(mine, run("a-1111", mine), OTHER) is Verdict.OWN
    assert verdict(mine, OTHER, run("a-1111", mine)) is Verdict.OTHER


def test_a_file_that_changed_after_it_was_closed_is_not_proven() -> None:
    then, now = file("/p/results.json", size=10), file("/p/results.json", size=11)
    assert verdict(now, run("a-1111", then), OTHER) is Verdict.UNCERTAIN
    assert verdict(now, run("a-1111", then)) is Verdict.OWN, "no other run could have changed it"


def test_a_file_that_was_renamed_after_it_was_written_is_known_by_its_inode() -> None:
    partial = file("/p/model.pt.tmp", inode=5)
    assert verdict(file("/p/model.pt", inode=5), run("a-1111", partial), OTHER) is Verdict.OWN


def test_a_file_of_an_unknown_writer_is_uncertain_where_two_ran_and_own_where_one_ran() -> None:
    assert verdict(file("/p/eval.json"), ALONE) is Verdict.OWN
    assert verdict(file("/p/eval.json"), ALONE, OTHER) is Verdict.UNCERTAIN
    assert verdict(file("/p/eval.json", changed_s=BEGUN_S - 60), ALONE) is Verdict.OTHER
    assert verdict(file("/p/eval.json", changed_s=ENDED_S + 60), ALONE) is Verdict.OTHER
    assert verdict(file("/elsewhere/eval.json"), ALONE) is Verdict.OTHER


def test_runs_one_after_the_other_keep_their_own_at_the_border() -> None:
    next_run = replace(OTHER, begun_s=ENDED_S + 0.5, ended_s=3000.0, last_sign_s=3000.0)
    assert verdict(file("/p/eval.json", changed_s=ENDED_S - 0.1), ALONE, next_run) is Verdict.OWN
    assert verdict(file("/p/eval.json", changed_s=ENDED_S - 0.1), next_run, ALONE) is Verdict.OTHER
    assert verdict(file("/p/eval.json", changed_s=ENDED_S + 0.7), next_run, ALONE) is Verdict.OWN


def test_the_deeper_named_directory_wins_and_two_of_one_name_are_uncertain() -> None:
    mine, above = replace(ALONE, named=frozenset({"/p/out/a"})), replace(OTHER, named=frozenset({"/p/out"}))
    assert verdict(file("/p/out/a/model.pt"), mine, above) is Verdict.OWN
    assert verdict(file("/p/out/a/model.pt"), above, mine) is Verdict.OTHER
    assert verdict(file("/p/out/model.pt"), above, mine) is Verdict.OWN
    assert verdict(file("/p/out/model.pt"), above, replace(above, run_id="c-3333")) is Verdict.UNCERTAIN


def test_what_a_link_leads_to_is_below_a_run_and_no_deeper_than_for_who_works_there() -> None:
    copy = replace(ALONE, cwd="/copy", linked=frozenset({"/p/exp"}))
    assert verdict(file("/p/exp/x/history.json"), copy) is Verdict.OWN
    assert verdict(file("/p/exp/x/history.json"), copy, OTHER) is Verdict.UNCERTAIN
    assert verdict(file("/p/exp/x/history.json"), OTHER, copy) is Verdict.UNCERTAIN
    assert verdict(file("/p/other/history.json"), copy) is Verdict.OTHER


def test_beside_a_written_file_counts_where_the_other_has_a_directory_of_its_own() -> None:
    mine = run("a-1111", file("/p/runs/a/events"))
    other = run("b-2222", file("/p/runs/b/events"))
    assert verdict(file("/p/runs/a/model.pt"), mine, other) is Verdict.OWN
    assert verdict(file("/p/runs/a/model.pt"), mine, OTHER) is Verdict.UNCERTAIN, "that one may write anywhere"
    shared = run("b-2222", file("/p/runs/a/other"))
    assert verdict(file("/p/runs/a/model.pt"), mine, shared) is Verdict.UNCERTAIN


def test_what_is_below_a_directory_with_the_runs_own_scalars_is_its_own() -> None:
    events = file("/p/logs/x/events.out.tfevents.1400.host.41.0")
    mine = replace(run("a-1111", events), pids=frozenset({41}))
    other = run("b-2222", file("/p/elsewhere/results.json"))
    assert verdict(file("/p/logs/x/model_5.pt"), mine, other) is Verdict.OWN
    assert verdict(file("/p/logs/x/model_5.pt"), replace(mine, pids=frozenset()), other) is Verdict.UNCERTAIN
    assert verdict(file("/p/logs/x/model_5.pt"), mine, run("b-2222", file("/p/logs/x/a.txt"))) is Verdict.UNCERTAIN
    assert verdict(file("/p/model_5.pt"), run("a-1111", file("/p/progress.csv")), other) is Verdict.UNCERTAIN
    table = file("/p/sb3/PPO_1/progress.csv")
    assert verdict(file("/p/sb3/PPO_1/model.zip"), run("a-1111", table), other) is Verdict.OWN
    assert verdict(file("/p/evals/b.json"), run("a-1111", file("/p/evals/a.json")), other) is Verdict.UNCERTAIN


def test_what_was_written_before_the_launch_is_not_the_runs_unless_it_held_the_file_open() -> None:
    for before_s in (0.1, 0.5, 1.9):
        old = file("/p/runs/a/model_100.pt", changed_s=BEGUN_S - before_s)
        named = replace(ALONE, named=frozenset({"/p/runs/a"}))
        assert verdict(old, ALONE) is verdict(old, named) is Verdict.OTHER
        assert verdict(old, run("a-1111", old)) is Verdict.OWN
    assert verdict(file("/p/model.pt", changed_s=BEGUN_S - 0.01), ALONE) is Verdict.OWN, "the kernel dates so"


def test_the_process_is_read_from_an_event_files_name_whatever_the_suffix() -> None:
    mine = replace(ALONE, pids=frozenset({41}), host="node-1.example")
    theirs = replace(OTHER, pids=frozenset({42}), host="node-1.example")
    for suffix in ("", ".v2", "_run", "2nd", ".2", ".2024-11-27", "7.5x", ".3.4"):
        name = f"/p/runs/events.out.tfevents.1400.node-1.example.41.0{suffix}"
        assert verdict(file(name), mine, theirs) is Verdict.OWN, suffix
        assert verdict(file(name), theirs, mine) is Verdict.OTHER, suffix
    at_an_address = replace(mine, host="10.0.0.5")
    assert verdict(file("/p/runs/events.out.tfevents.1400.10.0.0.5.41.0"), at_an_address, theirs) is Verdict.OWN
    assert verdict(file("/p/runs/events.out.tfevents.1400.node-2.41.0"), mine, theirs) is not Verdict.OWN


def test_an_event_file_with_the_number_of_a_process_is_its_runs() -> None:
    mine, theirs = (replace(one, pids=frozenset({pid})) for one, pid in ((ALONE, 41), (OTHER, 42)))
    shared = "/p/runs/Nov22_host/events.out.tfevents.1400.host"
    assert verdict(file(f"{shared}.41.0"), mine, theirs) is Verdict.OWN
    assert verdict(file(f"{shared}.42.0"), mine, theirs) is Verdict.OTHER
    assert verdict(file(f"{shared}.43.0"), mine) is Verdict.UNCERTAIN, "of a process that is not known"
    assert verdict(file(shared), mine, theirs) is Verdict.UNCERTAIN, "tensorboardX writes no number"


@pytest.mark.parametrize("name", ["/p/progress.csv", "/p/mlflow.db"])
def test_what_two_runs_wrote_into_one_file_is_nobodys(name: str) -> None:
    first, then = file(name, size=5), file(name, size=10)
    mine, earlier = run("a-1111", then, appends=True), run("b-2222", first, appends=True)
    assert verdict(then, mine, earlier) is Verdict.UNCERTAIN


def test_a_table_that_a_later_run_overwrote_is_the_later_runs() -> None:
    first, then = file("/p/progress.csv", size=5), file("/p/progress.csv", size=10)
    assert verdict(then, run("a-1111", then), run("b-2222", first)) is Verdict.OWN
    assert verdict(then, run("b-2222", first), run("a-1111", then)) is Verdict.OTHER


def test_what_a_person_states_wins_but_not_over_what_another_wrote() -> None:
    exact = replace(ALONE, results=("/p/evals/final.json",))
    assert verdict(file("/p/evals/final.json", changed_s=9e9), exact, OTHER) is Verdict.OWN
    directory = replace(ALONE, tensorboard=("/p/runs/x",))
    theirs = file("/p/runs/x/events")
    assert verdict(file("/p/runs/x/old", changed_s=1.0), directory, OTHER) is Verdict.OWN
    assert verdict(theirs, directory, run("b-2222", theirs)) is Verdict.OTHER
    assert verdict(file("/p/runs/x/other"), OTHER, directory) is Verdict.OTHER


def test_a_file_of_which_it_is_unsure_who_wrote_it_last_is_no_proof() -> None:
    shared = file("/p/evals/results.json")
    unsure = {shared.path: WrittenFile(shared.path, shared.inode, shared.size, shared.changed_ns, unsure=True)}
    mine = run("a-1111", file("/p/checkpoints/step_1.pt"))
    contested = replace(mine, written={**mine.written, **unsure})
    other = run("b-2222", file("/p/checkpoints/step_2.pt"))
    assert verdict(shared, contested, other) is Verdict.UNCERTAIN, "the other may write there as well"
    assert verdict(shared, contested) is Verdict.OWN, "no other run is known"
    assert verdict(shared, replace(contested, saved=(shared.path,)), other) is Verdict.UNCERTAIN
    assert verdict(shared, run("a-1111", shared), replace(contested, run_id="b-2222")) is Verdict.OWN, "written later"


def test_a_program_that_no_supervisor_started_counts_as_another_run() -> None:
    theirs = file("/p/progress.csv")
    written = {theirs.path: WrittenFile(theirs.path, theirs.inode, 0, 0, open=True)}
    outsider = Claims("process 7", "/p", BEGUN_S - 100, pids=frozenset({7}), written=written)
    assert verdict(theirs, ALONE, outsider) is Verdict.OTHER
    assert verdict(file("/p/eval.json"), ALONE, outsider) is Verdict.UNCERTAIN
    mine = file("/p/model.pt")
    assert verdict(mine, run("a-1111", mine), outsider) is Verdict.OWN
    events = "/p/runs/events.out.tfevents.1400.host"
    own = replace(ALONE, pids=frozenset({8}), host="host.domain")
    assert verdict(file(f"{events}.7.0"), own, outsider) is Verdict.OTHER
    assert verdict(file(f"{events}.8.0"), own, outsider) is Verdict.OWN
    assert verdict(file(f"{events}2.8.0"), own, outsider) is Verdict.UNCERTAIN, "a process of another machine"


def test_saved_paths_of_the_output_and_the_runs_id_in_a_path_are_proof() -> None:
    said = replace(ALONE, saved=("/p/checkpoints/step_100",))
    for path in ("/p/checkpoints/step_100", "/p/checkpoints/step_100.pt", "/p/checkpoints/step_100/model.pt"):
        assert verdict(file(path), said, OTHER) is Verdict.OWN
    assert verdict(file("/p/checkpoints/step_1000.pt"), said, OTHER) is Verdict.UNCERTAIN
    assert verdict(file("/p/out/a-1111/model.pt"), ALONE, OTHER) is Verdict.OWN
    assert verdict(file("/p/out/a-1111/model.pt"), OTHER, ALONE) is Verdict.OTHER


def test_a_directory_is_one_result() -> None:
    weights, config = file("/p/ck/step_1/model.pt"), file("/p/ck/step_1/config.json")
    assert OwnFiles(run("a-1111", weights), [OTHER]).judge_all([config, weights]) == (Verdict.OWN, Rank.WRITTEN)
    assert OwnFiles(OTHER, [run("a-1111", weights)]).judge_all([config, weights])[0] is Verdict.OTHER
    nobody = OwnFiles(ALONE, [OTHER])
    assert nobody.judge_all([config, weights])[0] is Verdict.UNCERTAIN
    assert nobody.uncertain == ("/p/ck/step_1",)
    both = OwnFiles(run("a-1111", weights), [run("b-2222", config)])
    assert both.judge_all([config, weights])[0] is Verdict.OTHER


def test_a_lost_run_claims_nothing_after_its_last_sign() -> None:
    lost = replace(OTHER, ended_s=float("inf"), last_sign_s=1200.0)
    assert verdict(file("/p/eval.json"), ALONE, lost) is Verdict.OWN
    assert verdict(file("/p/eval.json", changed_s=1100.0), ALONE, lost) is Verdict.UNCERTAIN


def test_files_in_the_result_directory_count_after_the_end(tmp_path: Path) -> None:
    own = OwnFiles(ALONE).with_result_directory(Path("/results/a"))
    assert own.judge(file("/results/a/eval.json", changed_s=ENDED_S + 9e5))[0] is Verdict.OWN
    assert own.judge(file("/results/a/eval.json", changed_s=BEGUN_S - 60))[0] is Verdict.OTHER


def test_a_result_directory_of_two_runs_belongs_to_neither_after_their_ends() -> None:
    mine, other = (replace(one, result_dir="/r", named=frozenset({"/r"})) for one in (ALONE, OTHER))
    late = file("/r/eval.json", changed_s=ENDED_S + 9e5)
    assert verdict(late, mine) is Verdict.OWN
    assert verdict(late, mine, other) is Verdict.UNCERTAIN
    later = replace(other, begun_s=ENDED_S + 100, ended_s=ENDED_S + 200, last_sign_s=ENDED_S + 200)
    between = file("/r/eval.json", changed_s=ENDED_S + 150)
    assert verdict(between, mine, later) is Verdict.OTHER
    assert verdict(between, later, mine) is Verdict.OWN


def test_a_note_names_three_and_counts_the_rest() -> None:
    assert describe_uncertain([]) is None
    note = describe_uncertain([f"/p/ck/{n}.pt" for n in range(5)])
    assert note == "Left out, since it is uncertain which run wrote them: 0.pt, 1.pt, 2.pt and 2 more in /p/ck."


def test_claims_of_others_are_read_at_the_first_file_and_once() -> None:
    weights, asked = file("/p/ck/model.pt"), list[str]()

    def find_others() -> tuple[list[Claims], bool]:
        asked.append("others")
        return [OTHER], False

    own = OwnFiles(run("a-1111", weights), find_others=find_others, has_ended=True)
    own.roots()
    assert (own.is_settled, asked) == (True, [])
    assert [own.judge(weights), own.judge(weights)] == [(Verdict.OWN, Rank.WRITTEN)] * 2
    assert (own.is_settled, asked) == (False, ["others"])


def test_below_a_directory_of_all_only_places_of_the_run_are_searched() -> None:
    claims = Claims("a-1111", "/tmp", named=frozenset({"/tmp/out"}), beside=frozenset({"/tmp", "/data/x"}))
    assert OwnFiles(claims).roots() == [Path("/tmp/out"), Path("/data/x")]
    assert OwnFiles(replace(claims, cwd="/tmp/a")).roots() == [Path("/tmp/out"), Path("/data/x")]
    assert OwnFiles(replace(claims, cwd="/tmp/out")).roots() == [Path("/data/x")]
    assert OwnFiles(claims).describe_places() == "looked below /tmp/out, /data/x"

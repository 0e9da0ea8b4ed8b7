"""How the cases of a study are shared out: what stands together, and how long chunks are."""

from scaleout.study.sweep import engine
from scaleout.study.sweep.cases import Resolver
from scaleout.study.sweep.engine import Execution, cases_of, execute, together
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.worker import Done


def test_a_chunk_has_few_of_what_there_is_more_of():
    """48 networks and 3 workloads: chunks are of whole networks; 2 and 3: of whole workloads."""
    keys = {"title": "chunks", "workload": "dlrm-128", "set": {"global_batch": [512, 1024, 2048]}}
    for factors, networks, workloads in ((48, 1, 3), (2, 2, 1)):
        study = study_of({**keys, "bandwidth": {0: [f"{n}x" for n in range(1, factors + 1)]}}, name="", where="")
        resolver = Resolver()
        groups = [[resolver.resolve(*each) for each in group] for group in together(cases_of(study, resolver))]
        assert sorted(case.number for group in groups for case in group) == list(range(3 * factors))
        for group in groups:
            assert len({case.topology for case in group}) == networks
            assert len({case.workload for case in group}) == workloads


def test_chunks_end_as_small_ones_and_are_handed_over_in_the_order_of_the_file(monkeypatch):
    """So that workers end at about the same time; in the order of the file cases of one program follow each other."""
    taken = []

    class Quick(engine.execution.Here):
        def submit(self, chunk):
            taken.append([case.number for case in chunk.cases])
            self._done.append(
                Done([{"key": case.key, "status": "failed", "message": "was not run"} for case in chunk.cases], 0.0)
            )

        def finished(self):
            return [Done(each.rows, 0.01 * len(each.rows)) for each in super().finished()]

    monkeypatch.setattr(engine.execution, "Here", Quick)
    batches = [128 * n for n in range(1, 1001)]
    for schedules in (["baseline"], ["baseline", "overlap", "fused"]):
        taken.clear()
        keys = {"workload": "dlrm-128", "set": {"global_batch": batches}, "schedule": schedules}
        execute(study_of({"title": "t", **keys}, name="", where=""), None, Execution(workers=1))
        assert all(chunk == sorted(chunk) for chunk in taken)
        lengths = list(map(len, taken))
        assert sum(lengths) == 1000 * len(schedules)
        assert lengths[1:] == sorted(lengths[1:], reverse=True)
        assert lengths[-2] in (25, 27)
        assert not any(length % len(schedules) for length in lengths), "cases of a program are parted"

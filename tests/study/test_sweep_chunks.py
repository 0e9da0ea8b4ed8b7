"""How the cases of a study are shared out: what stands together, and how long chunks are."""

from scaleout.study.sweep import engine
from scaleout.study.sweep.cases import Resolver
from scaleout.study.sweep.engine import Execution, cases_of, execute, together
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.worker import Done


def test_a_chunk_has_few_of_what_there_is_more_of():
    """48 networks and 3 workloads: chunks are of whole networks; 2 and 3: of whole workloads."""
    keys = {"title": "chunks", "workload": "dlrm-128", "set": {"global_batch": [512, 1024, 2048]}}
    for factors, length, networks, workloads in ((48, 12, 4, 3), (2, 2, 2, 1)):
        study = study_of({**keys, "bandwidth": {0: [f"{n}x" for n in range(1, factors + 1)]}}, name="", where="")
        resolver = Resolver()
        ordered = [resolver.resolve(*each) for each in together(list(cases_of(study, resolver)))]
        assert sorted(case.number for case in ordered) == list(range(3 * factors))
        for first in range(0, len(ordered), length):
            chunk = ordered[first : first + length]
            assert len({case.topology for case in chunk}) == networks
            assert len({case.workload for case in chunk}) == workloads


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
    study = study_of({"title": "t", "workload": "dlrm-128", "set": {"global_batch": batches}}, name="", where="")
    execute(study, None, Execution(workers=1))
    assert all(chunk == sorted(chunk) for chunk in taken)
    lengths = list(map(len, taken))
    assert sum(lengths) == 1000
    assert lengths[0] == 4
    assert lengths[1:] == sorted(lengths[1:], reverse=True)
    assert lengths[1] == 996 // 2
    assert lengths[-2] == 25

"""The mesh of axes: groups partition the ranks, and ranks are numbered as the module says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import meshes

from scaleout.errors import ConfigError
from scaleout.program.mesh import AXES, Mesh

EVERY_AXIS = (*AXES, "data", "world")
some_meshes = st.integers(1, 96).flatmap(meshes)


@given(some_meshes)
def test_groups_of_every_axis_partition_the_ranks(mesh):
    for axis in EVERY_AXIS:
        members = mesh.groups(axis).members
        assert sorted(rank for group in members for rank in group) == list(range(mesh.num_ranks))
        assert {len(group) for group in members} == {mesh.degree(axis)}
        assert all(list(group) == sorted(group) for group in members)


@given(some_meshes)
def test_degrees(mesh):
    assert mesh.num_ranks == mesh.tensor * mesh.context * mesh.data * mesh.pipeline
    assert mesh.degree("tensor") == mesh.tensor
    assert mesh.degree("expert") * mesh.degree("expert_data") == mesh.degree("data") == mesh.data
    assert mesh.degree("world") == mesh.num_ranks


@given(some_meshes)
def test_groups_are_the_ranks_that_differ_in_one_coordinate(mesh):
    """Oracle: coordinates by repeated division, tensor innermost; a group shares all the others."""
    sizes = (mesh.tensor, mesh.context, mesh.expert, mesh.data // mesh.expert, mesh.pipeline)

    def coordinates(rank):
        found = []
        for size in sizes:
            found.append(rank % size)
            rank //= size
        return tuple(found)

    own = {axis: {number} for number, axis in enumerate(AXES)} | {"data": {2, 3}, "world": {0, 1, 2, 3, 4}}
    for axis in EVERY_AXIS:
        groups = {}
        for rank in range(mesh.num_ranks):
            key = tuple(c for number, c in enumerate(coordinates(rank)) if number not in own[axis])
            groups.setdefault(key, []).append(rank)
        assert sorted(map(list, mesh.groups(axis).members)) == sorted(groups.values())


def test_tensor_is_innermost_and_pipeline_outermost():
    mesh = Mesh(tensor=2, data=4, expert=2, pipeline=2)
    assert mesh.groups("tensor").members[:2] == ((0, 1), (2, 3))
    assert mesh.groups("expert").members[0] == (0, 2)
    assert mesh.groups("expert_data").members[0] == (0, 4)
    assert mesh.groups("data").members[0] == (0, 2, 4, 6)
    assert mesh.groups("pipeline").members[0] == (0, 8)


def test_expert_divides_data():
    assert Mesh(data=8, expert=4).degree("expert_data") == 2
    with pytest.raises(ConfigError) as caught:
        Mesh(data=8, expert=3)
    assert "expert_parallel 3 does not divide data_parallel 8" in str(caught.value)
    assert "choose a divisor of 8" in str(caught.value)


@pytest.mark.parametrize("axis", ["tensor", "context", "data", "expert", "pipeline"])
@pytest.mark.parametrize("degree", [0, -2])
def test_degrees_below_one_are_refused(axis, degree):
    with pytest.raises(ConfigError, match=f"{axis}_parallel is {degree}; give a degree of 1 or more"):
        Mesh(**{axis: degree})

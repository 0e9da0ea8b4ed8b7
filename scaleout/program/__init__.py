"""The intermediate representation: execution graphs, programs of roles and process groups, operations, the mesh."""

"""Chakra execution traces: reading and writing the files, the values of attributes, and programs as trace sets.

A trace is one file a rank: metadata, then nodes, as messages of the public schema. They are written by protobuf, which
no other package imports, and read without. `save.save_program` and `load.load_program` turn programs into sets of
traces and back. Nothing here knows clusters or simulation.
"""

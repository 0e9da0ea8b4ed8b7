"""Networks: files, kinds of dimension, placement of groups, faults, and what a communication library adds."""

"""What other tools write and read: Chakra traces, ASTRA-sim inputs."""

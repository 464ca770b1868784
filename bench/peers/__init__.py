"""What trainband is compared with; programs that `bench` starts in the peers' own environments."""

"""The programs that trainband is compared with; `bench` starts them in the peers' own environments."""

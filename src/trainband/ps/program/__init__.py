"""The update program: exported by a worker, checked and run by a ps."""

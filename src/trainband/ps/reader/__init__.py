"""A reader's side: follows the params of a running job without joining it."""

"""A reader's side: follows the params of a job that runs, without being a part of it."""

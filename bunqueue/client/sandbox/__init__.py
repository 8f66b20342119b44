"""The sandbox: handlers in child processes, which may crash, hang or eat memory by themselves."""

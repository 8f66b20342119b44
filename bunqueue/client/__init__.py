"""What applications import: Queue, Job, Worker, Connection, over TCP and inside the process."""

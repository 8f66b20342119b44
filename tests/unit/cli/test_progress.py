import threading

from bunqueue.cli.progress import progress


def test_without_a_terminal_each_tenth_is_a_line(capsys):
    over = threading.Event()
    over.set()

    assert progress(lambda: 55, 100, over, deadline_s=1)
    assert "     55 of 100 jobs settled\n" == capsys.readouterr().out


def test_when_time_runs_out_the_answer_is_no(capsys):
    assert not progress(lambda: 0, 100, threading.Event(), deadline_s=0)
    assert "" == capsys.readouterr().out

"""Reading the database of the original server, version 2.9.5, once, to go on from it here.

``source`` opens such a file and never changes it; ``jobs`` and ``tables`` turn its rows into ours;
``importing`` runs the whole in one transaction; ``report`` says what came over and what did not.
"""

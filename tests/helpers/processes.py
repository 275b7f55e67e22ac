"""The command in a process that Ctrl-C reaches, whatever its parent ignores."""

# A process that was started with SIGINT ignored, as in the background of a script, is to hear it all the same.
LISTENING = """
import signal
import sqlite3
signal.signal(signal.SIGINT, signal.default_int_handler)
from inface.cli import main
main()
"""

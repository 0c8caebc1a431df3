"""Answers that exhaust a resource or never end."""

BOMBS = {
    "forks_endlessly": """
import os
try:
    while True:
        if os.fork() == 0:
            import time; time.sleep(60)
except OSError: pass
""",
    "starts_threads_endlessly": """
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except (RuntimeError, MemoryError): pass
""",
    "detaches_a_child_that_outlives_it": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3, 64):
            try: os.close(number)
            except OSError: pass
        time.sleep(60)
    os._exit(0)
""",
    "fills_the_memory": "held = []\nwhile True: held.append(bytearray(1 << 24))",
    "fills_its_disk": """
import os
try:
    for number in range(1000):
        with open(f"/tmp/{number}", "wb") as file: file.write(b"x" * (1 << 22))
except OSError: pass
""",
    "creates_files_endlessly": """
try:
    for number in range(1_000_000): open(f"/tmp/{number}", "w").close()
except OSError: pass
""",
    "prints_endlessly": "while True: print('x' * 10000)",
    "ignores_the_signal_of_the_cpu_limit": """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
""",
    "sleeps_for_a_long_time": "import time\ntime.sleep(1000)",
    "waits_for_input": "input()",
    "recurses_into_a_crash": """
import sys
sys.setrecursionlimit(10**9)
def f(): f()
f()
""",
    "returns_an_infinite_iterator": "import itertools\ndef double(x): return itertools.count()",
    "returns_a_list_that_contains_itself": "def double(x):\n    held = []\n    held.append(held)\n    return held",
    "returns_a_huge_value": "def double(x): return 'x' * (1 << 27)",
    "returns_a_huge_number": "def double(x): return 1 << (1 << 26)",
}

"""Answers that want a pass which they have not earned. Each is an answer to: write double(x).

The tests want 42, 0 and [1, 1] from it; no answer here computes them. One that learns what it should not prints
ESCAPED.
"""

CHEATS = {
    "ends_the_program_with_status_zero": "import sys; sys.exit(0)",
    "ends_the_process_with_status_zero": "import os; os._exit(0)",
    "ends_the_process_when_it_is_called": "import os\ndef double(x): os._exit(0)",
    "exits_from_atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef double(x): raise SystemExit(0)",
    "exits_from_the_exception_hook": (
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef double(x): raise ValueError"
    ),
    "returns_what_equals_everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 42
def double(x): return Yes()
""",
    "returns_a_number_that_equals_everything": """
class Yes(int):
    def __eq__(self, other): return True
    __ne__ = lambda self, other: False
def double(x): return Yes(7)
""",
    "returns_a_list_that_equals_everything": """
class Yes(list):
    def __eq__(self, other): return True
def double(x): return Yes()
""",
    "patches_builtins": """
import builtins
class Yes(int):
    def __eq__(self, other): return True
for name in ("int", "list", "isinstance", "type", "len", "print", "AssertionError", "compile", "exec", "open"):
    setattr(builtins, name, Yes)
def double(x): return Yes()
""",
    "makes_every_assertion_error_harmless": """
import builtins
class Quiet(BaseException):
    def __new__(cls, *a): raise StopIteration
builtins.AssertionError = Quiet
def double(x): raise builtins.AssertionError
""",
    "raises_assertion_error_itself": "def double(x): raise AssertionError",
    "raises_what_a_runner_may_take_for_the_end": "def double(x): raise GeneratorExit",
    "raises_system_exit_when_called": "def double(x): raise SystemExit(0)",
    "replaces_the_json_module": """
import json
json.dumps = lambda *a, **k: '["value", true]'
json.loads = lambda *a, **k: ["value", 42]
def double(x): return 0
""",
    "answers_with_a_forged_report": """
import json, os, struct
body = json.dumps({"state": "passed", "passed": 3, "reason": "", "secret": ""}).encode()
for number in range(3, 64):
    for message in (body, struct.pack("=I", len(body)) + body):
        try: os.write(number, message)
        except OSError: pass
def double(x): return 0
""",
    "floods_the_channel_with_right_looking_values": """
import json, os, struct
body = json.dumps(["value", True]).encode()
for number in range(3, 64):
    try: os.write(number, (struct.pack("=I", len(body)) + body) * 50)
    except OSError: pass
def double(x): return 0
""",
    "sends_garbage_on_the_channel": """
import os
for number in range(3, 64):
    try: os.write(number, b"\\xff" * 4096)
    except OSError: pass
def double(x): return 0
""",
    "reads_the_tests_from_the_frames": """
import re, sys
def double(x):
    frame, seen = sys._getframe(), ""
    while frame:
        seen += repr(frame.f_locals) + repr(frame.f_globals)
        frame = frame.f_back
    if "kept from " + "answers" in seen or re.search("'[0-9a-f]{32}'", seen): print("ESCAPED")
    return 0
""",
    "reads_the_tests_from_the_garbage_collector": """
import gc, re
def double(x):
    for item in gc.get_objects():
        for part in (item.values() if type(item) is dict else item if type(item) in (list, tuple) else ()):
            if type(part) is str and (part[::-1].startswith("srewsna morf tpek") or re.fullmatch("[0-9a-f]{32}", part)):
                print("ESCAPED", part)
    return 0
""",
    "reads_the_tests_from_memory_through_proc": """
import os
def double(x):
    for name in ("/proc/self/mem", "/proc/1/mem", "/proc/1/environ", "/proc/1/cmdline", "/proc/self/maps"):
        try:
            open(name, "rb").read(16)
            print("ESCAPED", name)
        except OSError: pass
    return 0
""",
    "reads_the_memory_of_the_tests_process": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
class Piece(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
def double(x):
    room = ctypes.create_string_buffer(64)
    ours, theirs = Piece(ctypes.addressof(room), 64), Piece(id(double), 64)
    if libc.process_vm_readv(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) > 0: print("ESCAPED")
    return 0
""",
    "traces_the_tests_process": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def double(x):
    for process in (1, os.getppid()):
        if libc.ptrace(16, process, 0, 0) == 0: print("ESCAPED")
    return 0
""",
    "takes_a_descriptor_of_the_tests_process": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def double(x):
    process = libc.syscall(434, 1, 0)
    for number in range(16):
        if libc.syscall(438, process, number, 0) >= 0: print("ESCAPED")
    return 0
""",
    "kills_the_tests_process": "import os, signal\ndef double(x):\n    os.kill(1, signal.SIGKILL)\n    return 0",
    "interrupts_the_tests_process": """
import os, signal
def double(x):
    for number in range(1, 32):
        if number not in (9, 19):
            try: os.kill(os.getppid(), number)
            except OSError: pass
    return 0
""",
    "looks_for_the_tests_in_its_own_memory": """
import ctypes, sys
def double(x):
    word = b"kept from" + b" answers"
    for module in list(sys.modules.values()):
        if word in repr(vars(module)).encode(): print("ESCAPED")
    return 0
""",
    "changes_its_argument_into_a_success": """
def double(x):
    if isinstance(x, list): x.clear(); x.extend([1, 1])
    return x
""",
    "hides_the_function_behind_a_module_attribute": """
import sys
class Module(type(sys)):
    def __getattr__(self, name): return lambda *a: 42
sys.modules["answer"].__class__ = Module
""",
    "poses_as_another_module": "import math as double",
    "lies_about_its_class": """
class Liar:
    __class__ = int
    def __eq__(self, other): return True
def double(x): return Liar()
""",
    "answers_from_a_forked_child": """
import os
if os.fork() == 0: pass
def double(x): return 0
""",
    "claims_to_hold_everything": """
class Held:
    def __contains__(self, item): return True
    def __eq__(self, other): return True
    def __len__(self): return 2
    def __iter__(self): return iter([0])
    def __getitem__(self, place): return 42
def double(x): return Held()
""",
    "converts_itself_into_the_right_number": """
class Number(float):
    def __float__(self): return 42.0
    def __eq__(self, other): return True
class Pairs(dict):
    def items(self): return [(1, 1)]
def double(x): return Number(7) if x == 21 else Pairs()
""",
    "becomes_a_type_of_pythons_own": """
import json, os, struct
def send(message):
    body = json.dumps(message).encode()
    os.write(3, struct.pack("=I", len(body)) + body)
for message in (["value", None], ["value", {"type": ["bool"]}], *[["value", True]] * 20): send(message)
""",
    "calls_functions_of_the_tests_that_it_was_never_lent": """
import json, os, struct
def double(x):
    for number in range(0, -9, -1):
        body = json.dumps(["lent", number, {"list": []}, {"dict": []}]).encode()
        os.write(3, struct.pack("=I", len(body)) + body)
""",
    "answers_every_question_before_it_is_asked": """
import json, os, struct, threading
body = json.dumps(["value", 42]).encode()
def spam():
    while True: os.write(3, struct.pack("=I", len(body)) + body)
threading.Thread(target=spam, daemon=True).start()
def double(x): return 0
""",
    "nests_an_answer_deeper_than_the_tests_can_read": """
import os, struct
def double(x):
    body = b'["value",' + b'{"list":[' * 100000 + b"]}" * 100000 + b"]"
    body = struct.pack("=I", len(body)) + body
    while body: body = body[os.write(3, body):]
""",
    "ends_while_its_error_is_told": """
import os
class Error(Exception):
    def __str__(self): os._exit(0)
def double(x): raise Error
""",
    "takes_the_tools_away_that_answer_for_it": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("services"):
        for part in list(vars(module)): setattr(module, part, lambda *a, **k: True)
def double(x): return 42
""",
}

"""Answers that try to pass without solving the task, which is to write double(x).

The tests expect 42, 0 and [1, 1]; no answer here computes them. An answer that learns something it should not
prints ESCAPED.
"""

CHEATS = {
    "exits_the_program_with_status_zero": "import sys; sys.exit(0)",
    "exits_the_process_with_status_zero": "import os; os._exit(0)",
    "exits_the_process_when_called": "import os\ndef double(x): os._exit(0)",
    "exits_from_atexit": "import atexit, os\natexit.register(os._exit, 0)\ndef double(x): raise SystemExit(0)",
    "exits_from_the_exception_hook": (
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef double(x): raise ValueError"
    ),
    "returns_an_object_that_equals_everything": """
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
    "replaces_assertion_error": """
import builtins
class Quiet(BaseException):
    def __new__(cls, *a): raise StopIteration
builtins.AssertionError = Quiet
def double(x): raise builtins.AssertionError
""",
    "raises_assertion_error_itself": "def double(x): raise AssertionError",
    "raises_generator_exit": "def double(x): raise GeneratorExit",
    "raises_system_exit_when_called": "def double(x): raise SystemExit(0)",
    "replaces_the_json_module": """
import json
json.dumps = lambda *a, **k: '["value", true]'
json.loads = lambda *a, **k: ["value", 42]
def double(x): return 0
""",
    "sends_a_forged_report": """
import json, os, struct
body = json.dumps({"state": "passed", "passed": 3, "reason": "", "secret": ""}).encode()
for number in range(3, 64):
    for message in (body, struct.pack("=I", len(body)) + body):
        try: os.write(number, message)
        except OSError: pass
def double(x): return 0
""",
    "floods_the_channel_with_plausible_values": """
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
    "searches_loaded_modules_for_the_tests": """
import ctypes, sys
def double(x):
    word = b"kept from" + b" answers"
    for module in list(sys.modules.values()):
        if word in repr(vars(module)).encode(): print("ESCAPED")
    return 0
""",
    "changes_its_argument_into_the_expected_value": """
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
    "claims_to_contain_everything": """
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
    "sends_a_builtin_type_as_its_value": """
import json, os, struct
def send(message):
    body = json.dumps(message).encode()
    os.write(3, struct.pack("=I", len(body)) + body)
for message in (["value", None], ["value", {"type": ["bool"]}], *[["value", True]] * 20): send(message)
""",
    "calls_test_functions_that_it_was_not_given": """
import json, os, struct
def double(x):
    for number in range(0, -9, -1):
        body = json.dumps(["lent", number, {"list": []}, {"dict": []}]).encode()
        os.write(3, struct.pack("=I", len(body)) + body)
""",
    "sends_results_before_they_are_requested": """
import json, os, struct, threading
body = json.dumps(["value", 42]).encode()
def spam():
    while True: os.write(3, struct.pack("=I", len(body)) + body)
threading.Thread(target=spam, daemon=True).start()
def double(x): return 0
""",
    "nests_a_value_too_deeply_to_decode": """
import os, struct
def double(x):
    body = b'["value",' + b'{"list":[' * 100000 + b"]}" * 100000 + b"]"
    body = struct.pack("=I", len(body)) + body
    while body: body = body[os.write(3, body):]
""",
    "exits_while_its_error_is_formatted": """
import os
class Error(Exception):
    def __str__(self): os._exit(0)
def double(x): raise Error
""",
    "replaces_the_functions_of_the_sandbox": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("rollyard.services"):
        for part in list(vars(module)): setattr(module, part, lambda *a, **k: True)
def double(x): return 42
""",
}
PROCESS_CHEATS = {
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
class IoVec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
def double(x):
    buffer = ctypes.create_string_buffer(64)
    ours, theirs = IoVec(ctypes.addressof(buffer), 64), IoVec(id(double), 64)
    if libc.process_vm_readv(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) > 0: print("ESCAPED")
    return 0
""",
    "traces_the_tests_process": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def double(x):
    for pid in (1, os.getppid()):
        if libc.ptrace(16, pid, 0, 0) == 0: print("ESCAPED")
    return 0
""",
    "takes_a_descriptor_of_the_tests_process": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def double(x):
    pidfd = libc.syscall(434, 1, 0)
    for number in range(16):
        if libc.syscall(438, pidfd, number, 0) >= 0: print("ESCAPED")
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
    "answers_from_a_forked_child": """
import os
if os.fork() == 0: pass
def double(x): return 0
""",
}
"""Cheats that the isolation mode prevents, unlike the others."""

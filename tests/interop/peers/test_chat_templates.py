"""Conversations as text against transformers: both run the same templates.

The templates are those below, those of tests/data/chat_templates, and all that are found in the
peers' own packages: files named *.jinja, and texts in Python files.
"""

import ast
import datetime
import json
import subprocess
import sysconfig
from pathlib import Path

import support

support.need("transformers")
support.need("jinja2")
from transformers.utils import chat_template_utils  # noqa: E402: after it is known to be there

CHATML = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']
 + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

QWEN2 = r"""{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{
'<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' +
message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if
add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

QWEN25 = r"""{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

QWEN35 = QWEN3.replace(r"""        {{- '<think>\n\n</think>\n\n' }}
""", r"""        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
""")

LLAMA2 = r"""{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set
system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set
system_message = false %}{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 and
system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' +
message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role']
== 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] ==
'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3 = r"""{% set loop_messages = messages %}{% for message in loop_messages %}{% set content =
'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim +
'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content
}}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n'
}}{% endif %}"""

LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

GEMMA2 = r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role
not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{%
set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role
+ '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{
'<start_of_turn>model\n' }}{% endif %}"""

GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
""".replace("    {{ '<end", "    {{- '<end").replace("    {{ '<start_of_turn>' + role", "    {{- '<start_of_turn>' + role")

MISTRAL = r"""{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] '
+ message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] +
eos_token}}{% endif %}{% endfor %}"""

# The first of them, which has a space behind the answer.
MISTRAL_01 = MISTRAL.replace("eos_token}}", "eos_token + ' ' }}").replace("+\neos_token", "+ eos_token")

MISTRAL_OFFICIAL = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- OPEN + system_message + "\n\n" + message["content"] + CLOSE }}
        {%- else %}
            {{- OPEN + message["content"] + CLOSE }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- ANSWER + eos_token}}
    {%- endif %}
{%- endfor %}
"""


def _official(open_, close, answer):
    text = MISTRAL_OFFICIAL.replace("OPEN", f'"{open_}"').replace("CLOSE", f'"{close}"')
    return text.replace("ANSWER", answer)


MISTRAL_V1 = _official(" [INST] ", " [/INST]", '" " + message["content"]')
MISTRAL_V3 = _official("[INST] ", "[/INST]", '" " + message["content"]|trim')
MISTRAL_TEKKEN = _official("[INST]", "[/INST]", 'message["content"]')

PHI3_FIRST = r"""{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') %}{{'<|user|>'
+ '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}{% elif (message['role'] ==
'assistant') %}{{message['content'] + '<|end|>' + '\n'}}{% endif %}{% endfor %}"""

PHI3 = r"""{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' +
message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' +
message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' +
message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{
'<|assistant|>\n' }}{% endif %}"""

TEMPLATES = {
    "chatml": CHATML, "qwen2": QWEN2, "qwen2.5": QWEN25, "qwen3": QWEN3, "qwen3.5": QWEN35,
    "llama2": LLAMA2, "llama3": LLAMA3, "llama3.1": LLAMA31, "gemma2": GEMMA2, "gemma3": GEMMA3,
    "mistral 0.1": MISTRAL_01, "mistral 0.2": MISTRAL, "mistral v1": MISTRAL_V1,
    "mistral v3": MISTRAL_V3, "mistral tekken": MISTRAL_TEKKEN, "phi3, first": PHI3_FIRST,
    "phi3": PHI3,
}

SYSTEM = {"role": "system", "content": "Answer in one sentence."}
HI = {"role": "user", "content": "What is a cache?"}
ANSWER = {"role": "assistant", "content": "What is kept,\nnearby."}
WHY = {"role": "user", "content": "  Why? \U0001F600\n\nTell <|im_end|> me.\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nBecause."}
REASONED = {"role": "assistant", "content": "Because.", "reasoning_content": "Let me see.\n",
            "thinking": "Let me see.\n"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "In "}, {"type": "text", "text": "parts"}]}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call12345", "type": "function",
     "function": {"name": "get_weather", "arguments": {"city": "Bür\"gen", "days": 2}}}]}
CALL_NONE = {**CALL, "content": None}
TWO_CALLS = {**CALL, "tool_calls": [*CALL["tool_calls"], {
    "id": "call54321", "type": "function", "function": {"name": "now", "arguments": {}}}]}
RESULT = {"role": "tool", "content": '{"sun": true}', "name": "get_weather", "tool_call_id": "call12345"}
RESULT_OBJECT = {**RESULT, "content": {"sun": True, "t": 21.5}}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city & its <region>.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Name, e.g. \"Bern\""},
            "days": {"type": "integer", "default": 3, "minimum": 0.5},
            "units": {"type": "string", "enum": ["°C", "°F"]},
            "tags": {"type": "array", "items": {"type": "string"}, "nullable": True}}}}},
    {"type": "function", "function": {"name": "now", "description": "The time.",
                                      "parameters": {"type": "object", "properties": {}}}}]

CONVERSATIONS = [
    [HI], [SYSTEM, HI], [HI, ANSWER], [HI, ANSWER, WHY], [SYSTEM, HI, ANSWER, WHY], [WHY],
    [SYSTEM], [HI, HI], [ANSWER], [HI, THOUGHT, WHY], [HI, THOUGHT], [SYSTEM, HI, REASONED, WHY],
    [HI, REASONED], [HI, ANSWER, SYSTEM, WHY], [PARTS], [SYSTEM, PARTS, ANSWER, HI],
    [HI, CALL, RESULT], [SYSTEM, HI, CALL, RESULT, ANSWER, WHY], [HI, CALL_NONE, RESULT, ANSWER],
    [HI, TWO_CALLS, RESULT, RESULT], [HI, CALL], [HI, CALL, RESULT_OBJECT],
    [HI, {**REASONED, "tool_calls": CALL["tool_calls"]}, RESULT, REASONED, HI], [],
]
# What differs between the calls: the request for an answer, tools, and the switch for thoughts.
SETTINGS = [{"add_generation_prompt": True, "tools": None},
            {"add_generation_prompt": False, "tools": None},
            {"add_generation_prompt": True, "tools": TOOLS},
            {"add_generation_prompt": True, "tools": None, "enable_thinking": False, "thinking": False}]
ALWAYS = {"documents": None, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
          "unk_token": "<unk>"}
NOW = datetime.datetime(2026, 11, 29, 8, 5, 0)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def is_template(text):
    return "{%" in text and "messages" in text and "{% extends" not in text


def found_in_packages():
    """Texts of the peers' packages that look like templates, by where they are."""
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")):
        if path.suffix in (".jinja", ".jinja2") and is_template(path.read_text(errors="replace")):
            yield path.name, path.read_text()
        if path.suffix != ".py" or not path.is_file():
            continue
        source = path.read_bytes()
        if b"{%" not in source or b"messages" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_template(node.value):
                yield f"{path.name}:{node.lineno}", node.value


class ChatTemplates(support.PeerTest):
    def ours(self, requests):
        done = subprocess.run([str(support.options().run_templates)], capture_output=True, text=True,
                              input="\n".join(json.dumps(request) for request in requests))
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

    def theirs(self, compiled, variables):
        try:
            return {"text": compiled.render(**variables)}
        except Exception as error:  # whatever Python raises
            return {"error": f"{type(error).__name__}: {error}"}

    def compare(self, name, jinja):
        """How many conversations both wrote, and refused. Fails if one did what the other did not."""
        try:
            compiled = chat_template_utils._compile_jinja_template(jinja)
        except Exception:
            return None  # not a template
        cases = [{"messages": messages, **settings, **ALWAYS}
                 for messages in CONVERSATIONS for settings in SETTINGS]
        answers = self.ours([{"template": jinja, "variables": case, "date": NOW.isoformat()}
                             for case in cases])
        counts = {"text": 0, "error": 0}
        for case, answer in zip(cases, answers, strict=True):
            expected = self.theirs(compiled, case)
            (kind,) = expected
            counts[kind] += 1
            what = f"{name}: {[m['role'] for m in case['messages']]}: {answer} instead of {expected}"
            if kind == "text":
                self.assertEqual(answer.get("text"), expected["text"], what)
            else:
                self.assertIn("error", answer, what)
        return counts

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, chat_template_utils, "datetime", chat_template_utils.datetime)
        chat_template_utils.datetime = FixedTime

    def test_same_text_for_the_families(self):
        templates = dict(TEMPLATES)
        for path in sorted((support.options().source / "tests/data/chat_templates").glob("*.jinja")):
            templates[path.name] = path.read_text()
        self.assertGreater(len(templates), 25)
        for name, jinja in templates.items():
            with self.subTest(template=name):
                counts = self.compare(name, jinja)
                self.assertGreater(counts["text"], 3, name)

    def test_same_text_for_templates_in_packages(self):
        n_templates = n_texts = 0
        for name, jinja in found_in_packages():
            with self.subTest(template=name):
                counts = self.compare(name, jinja)
                n_templates += counts is not None
                n_texts += counts["text"] if counts else 0
        print(f"{n_templates} templates in packages, {n_texts} texts")


if __name__ == "__main__":
    support.main()

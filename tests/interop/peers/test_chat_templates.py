"""Conversations as text against transformers, which runs the template that we recognize.

The templates are those of the families' models, without tools.
"""

import json
import subprocess

import support

transformers = support.need("transformers")
support.need("jinja2")
from tokenizers import Tokenizer, models  # noqa: E402: after it is known to be there

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

# name: template, form, whether it has a place for the system
TEMPLATES = {
    "chatml": (CHATML, "chatml", True),
    "qwen2": (QWEN2, "chatml", True),
    "qwen2.5": (QWEN25, "chatml", True),
    "qwen3": (QWEN3, "chatml", True),
    "qwen3.5": (QWEN35, "chatml", True),
    "llama2": (LLAMA2, "llama2", True),
    "llama3": (LLAMA3, "llama3", True),
    "llama3.1": (LLAMA31, "llama3", True),
    "gemma2": (GEMMA2, "gemma", False),
    "gemma3": (GEMMA3, "gemma", True),
    "mistral 0.1": (MISTRAL_01, "mistral", False),
    "mistral 0.2": (MISTRAL, "mistral", False),
    "mistral v1": (MISTRAL_V1, "mistral-v1", True),
    "mistral v3": (MISTRAL_V3, "mistral-v3", True),
    "mistral tekken": (MISTRAL_TEKKEN, "mistral-tekken", True),
    "phi3, first": (PHI3_FIRST, "phi3", False),
    "phi3": (PHI3, "phi3", True),
}

TALK = [{"role": "user", "content": "What is a cache?"},
        {"role": "assistant", "content": "What is kept,\nnearby."},
        {"role": "user", "content": "Why? \U0001F600\n\nTell me."}]
SYSTEM = {"role": "system", "content": "Answer in one sentence."}


def chats(has_system):
    yield TALK[:1]
    yield TALK
    if has_system:
        yield [SYSTEM, *TALK[:1]]
        yield [SYSTEM, *TALK]


class ChatTemplates(support.PeerTest):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")

    def ours(self, requests):
        done = subprocess.run([str(support.options().render_chats)], input=json.dumps(requests),
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def theirs(self, jinja, messages, thinks=True):
        more = {} if thinks else {"enable_thinking": False}
        return self.tokenizer.apply_chat_template(messages, chat_template=jinja, tokenize=False,
                                                  add_generation_prompt=True, **more)

    def compare(self, name, jinja, form, messages, thinks=True):
        request = {"template": jinja, "messages": messages, "begin_token": "<s>", "asks": True,
                   "thinks": thinks}
        ((recognized, text),) = self.ours([request])
        self.assertEqual(recognized, form, name)
        self.assertEqual(text, self.theirs(jinja, messages, thinks), name)

    def test_same_text(self):
        for name, (jinja, form, has_system) in TEMPLATES.items():
            for messages in chats(has_system):
                with self.subTest(template=name, messages=len(messages)):
                    self.compare(name, jinja, form, messages)

    def test_same_text_without_thinking(self):
        for name in ("qwen3", "qwen3.5"):
            with self.subTest(template=name):
                self.compare(name, *TEMPLATES[name][:2], TALK, thinks=False)


if __name__ == "__main__":
    support.main()

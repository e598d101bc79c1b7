"""Writes tests/data/jinja_cases.json: small Jinja programs and what transformers writes for them.

Run it with the peers' Python after a case was added here:

    build/peers/bin/python tests/tokenizer/make_jinja_cases.py > tests/data/jinja_cases.json

The oracle is the environment that transformers runs chat templates in. Where it raises an error,
the case says so, and the interpreter has to refuse the program, too. Programs of REFUSED run there
and are refused here, by name.
"""

import datetime
import json
import sys

from transformers.utils import chat_template_utils

VARIABLES = {
    "name": "Ann",
    "n": 7,
    "x": 2.5,
    "yes": True,
    "nothing": None,
    "text": "  Ünï  cödé\n\tline two  ",
    "thought": "<think>\nHm.\n</think>\n\nYes, it is.",
    "items": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "d": {"b": 1, "a": "two", "items": [1], "É": None},
    "people": [{"name": "Ann", "age": 3, "on": True}, {"name": "Bob", "age": 1, "on": False},
               {"name": "cid", "on": True}],
    "tool": {"type": "function", "function": {
        "name": "get_weather", "description": "Say \"hi\" <b> & 'bye' \\ é \u2028 😀",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b"]},
                       "days": {"type": "integer", "default": 3, "minimum": 0.5}}, "required": [], "none": {}}}},
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": None, "tool_calls": [
                     {"id": "1", "function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]},
                 {"role": "tool", "content": "{\"t\": 1}"}, {"role": "user", "content": "Thanks"}],
}

# Of each line one program: expressions are written between {{ }}.
EXPRESSIONS = r"""
name
'a' "b" 'c\n\t\\\'\"' "\x41\u00e9\U0001F600\q"
n + 1 - 2 * 3
n / 2
n // 2
-n // 2
-n % 3
n % -3
7.5 // 2
7.5 % 2
-7.5 % 2
x * n
n - x
1_000 + 1
1e3
2.50
1e16
1e15
1e-5
0.0001
123456789012345678
yes + 1
true == 1
1 == 1.0
'1' == 1
none == nothing
n > 3 and x < 3
n > 10 or name
0 or '' or none or 'last'
n and ''
not n
not not n
1 < n < 10
1 < n < 5
n in items
3 in items
3 not in items
'nn' in name
'a' in d
'zzz' in d
n in [7, 8]
'e' not in 'abc'
'a' ~ 1 ~ none ~ true ~ 2.0 ~ missing ~ 'z'
'a' + 'b' * 3
[1] + [2, 3]
(1,) + (2,)
[0] * 3
3 * 'ab'
'x' if n > 3 else 'y'
'x' if n > 30
('x' if n > 30) is defined
'a' if false else 'b' if false else 'c'
missing
missing is defined
missing is not defined
name is defined and name is string
name is string
n is number
yes is number
yes is boolean
yes is integer
n is integer
x is float
none is none
nothing is none
missing is none
d is mapping
items is mapping
items is iterable
name is iterable
missing is iterable
name is sequence
items is sequence
d is sequence
n is sequence
n is iterable
yes is true
n is true
yes is false
false is false
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(7)
n is ne 7
n is gt 3
n is lessthan 3
n is ge 7
n is in [7]
n is in items
'abc' is lower
'ABC' is upper
'abc' is upper
missing is undefined
d is sameas d
none is sameas none
raise_exception is callable
name is callable
namespace is defined
foo.bar is defined
d.b
d['b']
d.a
d.zzz
d['zzz'] is defined
d.items is defined
d['items']
d.items() | list
d.keys() | list
d.values() | list
d.get('b')
d.get('zzz')
d.get('zzz', 5)
d.get('É', 5)
items[0]
items[-1]
items[9] is defined
items['a'] is defined
items[1:]
items[:-1]
items[::-1]
items[::2]
items[5:]
items[-2:]
name[0]
name[-1]
name[9] is defined
name[1:]
name[::-1]
text[2:6]
text[-3:]
text[::-1]
people[0].name
people[0]['name']
people.0.name
people[-1].age is defined
(1, 2)[0]
(1, 2)
()
(1,)
[1, 'a', none, true, 2.0, "it's", 'say "x"', "both ' and \"", 'é\n\x00\u200b😀']
{'a': 1, 2: 'b', none: [1], 'nested': {'x': {}}}
{'a': {'b': {'c': 1}}}.a.b.c
[1, 2,]
range(3) | list
range(1, 10, 3) | list
range(5, 0, -2) | list
range(3)[1]
range(3) | length
dict(a=1, b='x')
dict({'z': 1}, a=2)
name.upper() + name.lower()
'hello world-foo (bar'.title()
'hello world-foo (bar x\'s' | title
'hELLO wORLD' | capitalize
'hELLO'.capitalize()
'ÀÉß' | lower
'àé' | upper
text.strip()
text.lstrip()
text.rstrip()
text | trim
'xxaxx'.strip('x')
'xyaxy'.lstrip('xy')
'--a--' | trim('-')
none | trim
5 | string + '1'
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
thought.split('</think>')[-1].lstrip('\n')
thought.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
'a\nb\r\nc'.splitlines()
'a\nb\n'.splitlines(true)
'abcabc'.replace('b', 'XX')
'abcabc'.replace('b', 'XX', 1)
'abcabc' | replace('a', '')
123 | replace(2, 9)
name.startswith('A')
name.startswith(('X', 'A'))
name.endswith('n')
name.endswith(('x', 'y'))
'abcabc'.find('c')
'abcabc'.rfind('c')
'abcabc'.find('z')
'äbc'.find('c')
'aXbX'.count('X')
', '.join(words)
'-'.join('abc')
'{} and {}'.format('a', 1)
'{0}{1}{0} {k} {{}}'.format('a', 'b', k=n)
'%s is %d%%' % ('a', 5)
'%s' % name
'a' 'b' ~ 'c'
'123'.isdigit()
''.isdigit()
'abc'.isalpha()
'ab1'.isalnum()
' \n'.isspace()
'AB'.isupper()
'ab'.islower()
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
items.index(1)
items.count(1)
name | length
text | length
items | length
d | count
missing | length
missing | default('z')
missing | default
'' | default('z')
'' | default('z', true)
nothing | default('z')
nothing | d('z', boolean=true)
items | join
items | join(', ')
people | join(', ', attribute='name')
items | sort
items | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
people | sort(attribute='name') | map(attribute='name') | list
items | first
items | last
[] | first is defined
'abc' | first
'abc' | last
items | reverse | list
'abc' | reverse
words | unique | list
words | unique(case_sensitive=true) | list
words | map('upper') | list
words | map('replace', 'p', 'q') | join('|')
people | map(attribute='age') | list | length
people | map(attribute='age', default=0) | list
people | map(attribute='name') | map('length') | list
people | selectattr('on') | map(attribute='name') | list
people | rejectattr('on') | map(attribute='name') | list
people | selectattr('age', 'defined') | list | length
people | selectattr('name', 'equalto', 'Bob') | list | length
people | selectattr('name', '==', 'Bob') | list | length
people | selectattr('name', 'in', ['Bob', 'cid']) | map(attribute='name') | join(',')
people | selectattr('on') | first
items | select('odd') | list
items | reject('odd') | list
items | select('greaterthan', 1) | list
[0, 1, '', 'a'] | select | list
messages | selectattr('role', 'equalto', 'nobody') and 'always true'
(messages | selectattr('role', 'equalto', 'nobody') | list) or 'empty'
d | items | list
d | dictsort
d | dictsort(reverse=true)
{'b': 1, 'a': 2} | dictsort(false, 'value')
'42' | int
'42.9' | int
'x' | int
'x' | int(-1)
3.99 | int
true | int
none | int
' 7 ' | int
'1.5' | float
'x' | float
3 | float
name | string
[1, 'a'] | string
'a<b' | safe
tool | tojson
tool | tojson(indent=2)
tool | tojson(indent=4, ensure_ascii=true)
tool | tojson(separators=(',', ':'))
tool | tojson(sort_keys=true)
tool | tojson(indent='\t')
[] | tojson(indent=2)
[1, [2, {}], {'a': []}] | tojson(indent=1)
'é\u0001\u007f"\\/' | tojson
'é😀\u007f' | tojson(ensure_ascii=true)
[1.0, 1e100, -0.0, 1e-7, true, none] | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
(1, 2) | tojson
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(width=2, blank=true)
'a\nb' | indent('>>')
'a\n' | indent
'a' is string is defined
n|string|length
-n|string
-x | string
(-3) | string
not missing
missing == none
missing == missing2
missing != 1
missing ~ 'x'
missing in items
missing | list
missing | join
missing | upper
missing | items | list
{} | items | list
strftime_now('%d %b %Y')
strftime_now('%A, %B %-d, %Y %H:%M:%S %y %m %a %I %p %%')
strftime_now is defined
people[0] == {'name': 'Ann', 'on': true, 'age': 3}
[1, 2] == (1, 2)
[1, 2] < [1, 3]
'a' < 'b'
'Z' < 'a'
1 < 2.5
(1 if true else 2) + 1
n if n is defined else 0
loop is defined
messages[1:] | length
messages[0]['role'] == 'system'
messages[2].content is none
messages[2].tool_calls is defined and messages[2].tool_calls
messages[1].tool_calls is defined
messages[2].tool_calls[0].function.arguments | tojson
messages[-1].content.upper()
messages | map(attribute='role') | list
messages | rejectattr('role', 'in', ['tool', 'system']) | map(attribute='role') | join(' ')
1 is not none
[1,2] is not string
'x' in ('x', 'y')
('a', 'b') | join
((1))
'%.2f' is string
n, x
none is not none or true
d | length == 4
name ~ '!' if name else 'nobody'
[[1, 2], [3]] | map('join', '+') | list
[[1, 2], [3]] | map('first') | list
{'a': 1}.items() | list | first | last
'a b'.split(' ', maxsplit=1)
'tab\tnew\r' ~ ''
'' is string
messages | tojson | length
namespace(a=1).a
namespace(a=1).b is defined
namespace({'a': 5})['a']
""".strip("\n")

PROGRAMS = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}  \n  b\n  {% endif %}  \nc\n\n",
    "a  {%- if yes -%}  b  {%- endif -%}  c",
    "a  {%+ if yes %}  b  {%+ endif +%}\n  c",
    "  {{ name }}  \n  {{- name -}}  \n  x",
    "{# comment #}\na{#- c -#}  b\n  {# c #}\nz",
    "{% raw %}{{ x }}{% if %}{% endraw %}|{%- raw -%}  {% x %}  {%- endraw -%}  y",
    "{% raw %}\na\n{% endraw %}\nb",
    "x\r\ny\rz{% if yes %}\r\nw{% endif %}\r\n",
    "{{ '\r\n' }}|",
    "{% for i in items %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for i in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem is defined }} {% endfor %}",
    "{% for i in items if i > 1 %}{{ loop.length }}:{{ i }} {% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}|{% for i in missing %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for (k, v) in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for c in 'äb' %}[{{ c }}]{% endfor %}",
    "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in items %}{% for y in items %}{{ loop.index }}{% if y == x %}{% break %}{% endif %}{% endfor %};{{ loop.index }}{% endfor %}",
    "{% set a = 1 %}{% for x in items %}{% set a = a + x %}{{ a }},{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1, b=[]) %}{% for x in items %}{% set ns.a = ns.a + x %}{% set ns.b = ns.b + [x] %}{% endfor %}{{ ns.a }} {{ ns.b }}",
    "{% if yes %}{% set a = 5 %}{% endif %}{{ a }}{% if not yes %}{% set b = 5 %}{% endif %}{{ b }}|",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}",
    "{% set a %}x{{ name }}{% endset %}{{ a | upper }}{% set b | upper | trim %}  abc {% endset %}[{{ b }}]",
    "{% set x %}{% set inner = 1 %}{{ inner }}{% endset %}{{ x }}{{ inner is defined }}",
    "{% if n == 1 %}1{% elif n == 7 %}7{% elif n == 8 %}8{% else %}e{% endif %}",
    "{% if n == 1 %}1{% elif n == 2 %}2{% else %}e{% endif %}",
    "{% macro f(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(c=3, a=0) }}{{ f() }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}",
    "{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% set g = 'G' %}{% macro f() %}{{ g }}{% set g2 = 1 %}{% endmacro %}{{ f() }}{% set g = 'H' %}{{ f() }}{{ g2 is defined }}",
    "{% macro f(t) %}[{{ caller() }}{{ t }}]{% endmacro %}{% call f('x') %}inner {{ name }}{% endcall %}",
    "{% macro f() %}{{ caller('p') }}{% endmacro %}{% call(v) f() %}<{{ v }}>{% endcall %}",
    "{% macro f() %}\n  a\n{% endmacro %}{{ f() | trim }}|{{ f() is string }}",
    "{% filter upper %}ab{{ name }}{% endfilter %}{% filter replace('a', 'b') | upper %}aa{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 2 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% generation %}{{ name }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}",
    "{% set it = people | selectattr('on') %}{% for p in it %}{{ p.name }}{% endfor %}{% for p in it %}again{% endfor %}{{ it is iterable }}{{ it is sequence }}",
    "{% set it = items | reverse %}{% for p in it %}{{ p }}{{ loop.last }}{% endfor %}",
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}\n{% endfor %}",
    "{%- for m in messages %}\n    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}\n        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n",
    "{% for m in messages[::-1] %}{% set index = (messages | length - 1) - loop.index0 %}{{ index }}{{ m.role }} {% endfor %}",
    "{{ {'a': '}}', 'b': '%}'} }}{{ '{{' }}{{ '{%' }}",
    "{{ name }}\n",
    "{{ name }}\n\n",
    "{{ name -}}\n\n x",
    "{% if true %}\n\n x{% endif %}",
    "{{ a.b.c if a is defined else 'no a' }}",
    "{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{{ loop_messages | length }}",
    "{{ [1, 2, 3,][1] }}{{ {'a': 1,}['a'] }}",
    "{% if (messages | length > 3) and not (messages[0]['role'] != 'system') %}y{% endif %}",
    "{% set content = '' %}{% if messages[1].content is string %}{% set content = messages[1].content %}{% endif %}[{{ content }}]",
    "{{ 'a' }}{{- 'b' }}  {{ 'c' -}}  d",
    "{% set x = 'a' %}\n{% set y = 'b' %}\n\n{{ x }}{{ y }}\n",
    "\t{% if yes %}x\t{% endif %}\n  \t{% if yes %}y{% endif %}",
    "{{ dict(a=namespace(b=1)).a.b }}",
    "{% macro kv(d) %}{% for k in d %}{{ k }}:{% if d[k] is mapping %}({{ kv(d[k]) }}){% else %}{{ d[k] | tojson }}{% endif %} {% endfor %}{% endmacro %}{{ kv(tool) }}",
    "{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{% set ns.y %}b{% endset %}{{ ns.y }}",
    "{% for x in items %}{{ x }}{% set last = x %}{% endfor %}{{ last is defined }}",
    "{% for x in items recursive_ %}{% endfor %}",
    "{% set x = missing %}{{ x is defined }}{% set x = none %}{{ x is defined }}",
    "{% macro f(a, b, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(1, *[2], **{'c': 5}) }}{{ f(*items) }}",
    "{% for x in none | selectattr('a') %}x{% else %}e{% endfor %}{{ none | map(attribute='a') | list }}{{ 0 | select | list }}",
    # Errors there and here.
    "{{ d[1:] }}", "{{ nothing[:2] }}", "{{ missing[1:] }}", "{{ n[1:] }}",
    "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 'a' + 1 }}",
    "{{ 1 + none }}", "{{ name.append(1) }}", "{{ items.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}",
    "{{ nothing.x.y }}", "{{ none + 'a' }}", "{{ n < 'a' }}", "{{ missing < 1 }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}",
    "{{ raise_exception('no') }}", "{{ 'a' | nofilter }}", "{{ 'a' is notest }}", "{{ 5 | length }}",
    "{{ (items | map('upper')).x.y }}", "{{ items | map('nofilter') | list }}", "{{ range(1000000) }}",
    "{% if yes %}", "{{ name", "{% endif %}", "{{ name }", "{% for x %}{% endfor %}", "{{ 1 + }}", "{{ (1 }}",
    "{# open", "{% raw %}x", "{{ 'open }}", "{% for a, b in items %}{% endfor %}", "{% set a.b = 1 %}",
    "{% set d.x = 1 %}", "{% break %}", "{{ missing | tojson }}", "{{ (items | reverse) | tojson }}",
    "{{ n() }}", "{{ 1 in 2 }}", "{{ none in 'a' }}", "{{ 'a' in none }}", "{{ none | join }}", "{% for x in none %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}", "{{ items | sort(attribute='x') | first | tojson(foo=1) }}", "{{ [1, 'a'] | sort }}",
    "{{ d[[1]] is defined }}{{ {[1]: 2} }}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}",
    "{{ name.__class__.x }}", "{{ ''.__class__.__mro__ }}", "{{ name.join([1]) }}", "{{ name.split('') }}", "{{ 'a'.startswith(1) }}",
    "{{ missing | int }}", "{% do x %}", "{% unknown %}", "{{ loop.index }}", "{{ items[::0] }}", "{{ 'a'.index('z') }}",
    "{{ namespace(_a=1) }}", "{{ 'a' 'b' 1 }}", "{{ is }}", "{{ {1: 2 }}", "{{ 'é' | foo }}", "{{ x is }}", "{{ yes is sameas }}",
]

# Programs that transformers runs and the interpreter refuses: what it lacks, it must not guess.
REFUSED = [
    "{{ 2 ** 3 }}", "{% include 'x' ignore missing %}", "{{ joiner(',') }}", "{{ items | batch(2) | list }}",
    "{% for x in items recursive %}{% endfor %}", "{{ name.encode('utf-8') }}", "{{ name.swapcase() }}",
    "{{ 'ß' | upper }}", "{{ d.items() }}", "{{ name is filter }}", "{{ name | escape }}", "{{ '%x' % 5 }}",
    "{{ '%5s' % 'a' }}", "{{ '{:>5}'.format('a') }}", "{{ 9223372036854775807 + 1 }}", "{{ 99999999999999999999 }}",
    "{{ items | map('int', base=2) | list }}", "{{ namespace }}", "{{ items | reverse }}", "{{ ('a' | safe) + '<' }}",
    "{% macro f() %}{{ varargs }}{% endmacro %}{{ f() }}", "{{ strftime_now('%U') }}", "{{ '²'.isdigit() }}",
]

NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def oracle(program):
    try:
        compiled = chat_template_utils._compile_jinja_template(program)
        return {"text": compiled.render(**VARIABLES)}
    except Exception as error:
        return {"error": type(error).__name__}


def main():
    chat_template_utils.datetime = FixedTime
    cases = []
    for program in ["{{ " + line + " }}" for line in EXPRESSIONS.split("\n")] + PROGRAMS:
        cases.append({"template": program, **oracle(program)})
    for program in REFUSED:
        cases.append({"template": program, "refused": True})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    sys.stdout.write('{"date": "%s",\n"variables": %s,\n"cases": [\n%s\n]}\n' % (
        NOW.isoformat(), json.dumps(VARIABLES, ensure_ascii=False), lines))


if __name__ == "__main__":
    main()

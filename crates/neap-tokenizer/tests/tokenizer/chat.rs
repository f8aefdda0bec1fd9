//! Chat templates, against Python's jinja2.

use neap_tokenizer::chat::{ChatError, ChatTemplate, Json};
use serde::Deserialize;
use std::time::{Duration, UNIX_EPOCH};

const LLAMA: &str = r###"{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = "" %}
    {%- set rest = messages %}
{%- endif %}
{{- "<|head|>system<|/head|>\n\nToday: " + strftime_now("%d %b %Y") + "\n" }}
{%- if tools is not none %}
    {{- "Tools:\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system + "<|/turn|>" }}
{%- for message in rest %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|/head|>\n\n' + message['content'] | trim + '<|/turn|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one call at a time, please") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|head|>assistant<|/head|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|/turn|>" }}
    {%- else %}
        {{- "<|head|>tool<|/head|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|/turn|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\n\n' }}
{%- endif %}
"###;

const QWEN: &str = r###"{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and not(message.content.startswith('<reply>') and message.content.endswith('</reply>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set thought = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '[assistant]\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '[assistant]\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}
                {{- '\n' }}
            {%- endif %}
            {{- '<call>' ~ call.name ~ call.arguments | tojson ~ '</call>' }}
        {%- endfor %}
        {{- '[/]\n' }}
    {%- else %}
        {{- '[' + message.role + ']\n' + message.content + '[/]' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"###;

const GEMMA: &str = r###"{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set first = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must take turns") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<turn>' + role + '
' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("what is this?") }}
    {%- endif -%}
    {{ '</turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<turn>model
'}}
{%- endif -%}
"###;

const PHI: &str = r###"{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}
"###;

const MIXED: &str = r###"{% macro line(name, value) %}
  {{ name }}={{ value }};
{% endmacro %}
{% for message in messages %}
    {% if message.skip %}
        {% continue %}
    {% endif %}
    {% if message.stop is defined and message.stop %}{% break %}{% endif %}
    {% generation %}
    {{ line(message.role | upper, message.get('content', 'none')) }}
    {% endgeneration %}
    {% for key, value in message.items() %}{{ key }}:{{ value | tojson }}{{ ", " if not loop.last }}{% endfor %}

    {% for key, value in message | dictsort %}{{ loop.index }}{{ key }} {% endfor %}
    {{ loop.previtem.role if loop.previtem is defined else '-' }} {{ message.content | default('no') | replace('a', 'o') | length }} {{ 'x' in message }} {{ none }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ -7 % 3 }} {{ message.role * 2 }} {{ message.role[1:3] }} {{ message.role[-1] }} {{ missing }}
{% endfor %}
{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ range(3) | list | tojson }} {{ (messages | last).role.title() }} {{ {'b': 1, 'a': [1, 2.5, 1e20, 0.00001, 'é"\\\n', true, none]} | tojson(sort_keys=true) }} {{ 'é' | tojson(ensure_ascii=true) }} {{ [] | tojson(indent=2) }} {{ [1, {'a': {}}] | tojson(indent=2) }} {{ [1, 2] | tojson(separators=(',', ':')) }}
"###;

/// Template, what it is given, and what Python's jinja2 3.1.6 makes of it, set up as `transformers` does; ! before what a template says when
/// it refuses.
const CASES: &[(&str, &str, &str)] = &[
    (
        LLAMA,
        r###"{"messages": [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello."}], "add_generation_prompt": true}"###,
        r###"<s><|head|>system<|/head|>

Today: 29 Feb 2024
<|/turn|><|head|>user<|/head|>

Hi<|/turn|><|head|>assistant<|/head|>

Hello.<|/turn|><|head|>assistant<|/head|>

"###,
    ),
    (
        LLAMA,
        r###"{"messages": [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "a\nb"}], "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells the weather; \"now\" é <b>", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}}], "add_generation_prompt": true}"###,
        r###"<s><|head|>system<|/head|>

Today: 29 Feb 2024
Tools:
{
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather; \"now\" é <b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string"
                },
                "days": {
                    "type": "integer",
                    "default": 1
                }
            },
            "required": [
                "city"
            ]
        }
    }
}

Be brief.<|/turn|><|head|>user<|/head|>

a
b<|/turn|><|head|>assistant<|/head|>

"###,
    ),
    (
        LLAMA,
        r###"{"messages": [{"role": "user", "content": "w?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": 0.5}}}]}, {"role": "tool", "content": "sunny"}, {"role": "tool", "content": {"a": [1, null, true]}}]}"###,
        r###"<s><|head|>system<|/head|>

Today: 29 Feb 2024
<|/turn|><|head|>user<|/head|>

w?<|/turn|><|head|>assistant<|/head|>

{"name": "weather", "parameters": {"city": "Zürich", "days": 2, "x": 0.5}}<|/turn|><|head|>tool<|/head|>

"sunny"<|/turn|><|head|>tool<|/head|>

{"a": [1, null, true]}<|/turn|>"###,
    ),
    (
        LLAMA,
        r###"{"messages": [{"role": "user", "content": "w?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": 0.5}}}, {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": 0.5}}}]}]}"###,
        r###"!one call at a time, please"###,
    ),
    (
        QWEN,
        r###"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}, {"role": "user", "content": "more"}], "add_generation_prompt": true, "enable_thinking": false}"###,
        r###"[user]
Hi[/]
[assistant]
Hello.[/]
[user]
more[/]
[assistant]
<think>

</think>

"###,
    ),
    (
        QWEN,
        r###"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}]}"###,
        r###"[user]
Hi[/]
[assistant]
<think>
hm
</think>

Hello.[/]
"###,
    ),
    (
        QWEN,
        r###"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x", "reasoning_content": "why", "tool_calls": [{"name": "f", "arguments": {"b": 1, "a": "é"}}]}, {"role": "user", "content": "<reply>r</reply>"}], "add_generation_prompt": true, "enable_thinking": true}"###,
        r###"[system]
S[/]
[user]
Hi[/]
[assistant]
<think>
why
</think>

x
<call>f{"b": 1, "a": "é"}</call>[/]
[user]
<reply>r</reply>[/]
[assistant]
"###,
    ),
    (
        GEMMA,
        r###"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what? "}]}], "add_generation_prompt": true}"###,
        r###"<s><turn>user
S

Hi</turn>
<turn>model
Hello.</turn>
<turn>user
<image>what?</turn>
<turn>model
"###,
    ),
    (
        GEMMA,
        r###"{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}"###,
        r###"!roles must take turns"###,
    ),
    (
        GEMMA,
        r###"{"messages": [{"role": "system", "content": [{"type": "text", "text": "T"}]}, {"role": "user", "content": 3}]}"###,
        r###"!what is this?"###,
    ),
    (
        PHI,
        r###"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}"###,
        r###"<|system|>
S<|end|>
<|user|>
Hi<|end|>
<|assistant|>
Hello.<|end|>
</s>"###,
    ),
    (
        PHI,
        r###"{"messages": [{"role": "user", "content": "日本 😀"}], "add_generation_prompt": true}"###,
        r###"<|user|>
日本 😀<|end|>
<|assistant|>
"###,
    ),
    (
        MIXED,
        r###"{"messages": [{"role": "user", "content": "banana"}, {"role": "x", "skip": true}, {"role": "assistant", "content": "b", "n": 1.5, "t": true, "z": null, "o": {"k": []}}, {"role": "user", "stop": true}, {"role": "user", "content": "never"}]}"###,
        r###"      USER=banana;

role:"user", content:"banana"
1content 2role     - 6 False None 1.0 3 3.5 8 2 useruser se r 
      ASSISTANT=b;

role:"assistant", content:"b", n:1.5, t:true, z:null, o:{"k": []}
1content 2n 3o 4role 5t 6z     x 1 False None 1.0 3 3.5 8 2 assistantassistant ss t 
user,x,assistant,user,user 3 [0, 1, 2] User {"a": [1, 2.5, 1e+20, 1e-05, "é\"\\\n", true, null], "b": 1} "\u00e9" [] [
  1,
  {
    "a": {}
  }
] [1,2]"###,
    ),
];

#[derive(Deserialize)]
struct Arguments {
    messages: Json,
    tools: Option<Json>,
    #[serde(default)]
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
}

fn render(template: &str, arguments: &str) -> Result<String, ChatError> {
    let given: Arguments = serde_json::from_str(arguments).unwrap();
    ChatTemplate::new(template)
        .with_tokens("<s>", "</s>")
        .at(UNIX_EPOCH + Duration::from_secs(1_709_251_199))
        .render(
            &given.messages,
            given.tools.as_ref(),
            given.add_generation_prompt,
            given.enable_thinking,
            &[],
        )
}

#[test]
fn prompts_are_those_that_python_makes() {
    for (template, arguments, expected) in CASES {
        match (render(template, arguments), expected.strip_prefix('!')) {
            (Ok(prompt), None) => assert_eq!(prompt, *expected, "{arguments}"),
            (Err(ChatError::Refused(message)), Some(expected)) => assert_eq!(message, expected),
            (other, _) => panic!("{other:?} for {arguments}"),
        }
    }
}

#[test]
fn what_fails_is_told_in_one_line() {
    let error = |template: &str| {
        render(template, r#"{"messages": []}"#)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("a\n{{ raise_exception('no tools') }}"),
        "the chat template refuses this conversation: no tools"
    );
    for (template, words) in [
        ("a\n{% if %}", "(line 2)"),
        ("{{ messages.x.y }}", "undefined value"),
        ("{{ 'a' | nope }}", "nope"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "fuel",
        ),
    ] {
        let told = error(template);
        assert!(
            told.starts_with("the chat template cannot be used: "),
            "{told}"
        );
        assert!(told.contains(words) && !told.contains('\n'), "{told}");
    }
}

#[test]
fn templates_are_given_what_they_know_beside_messages() {
    let messages = Json::of(&[("role", "user")]);
    let extra = [("effort".to_owned(), Json::parse("\"high\"").unwrap())];
    let prompt =
        ChatTemplate::new("{{ effort }} {{ tools is none }} {{ enable_thinking is defined }}")
            .render(&messages, None, false, None, &extra);
    assert_eq!(prompt.unwrap(), "high True False");
    assert!(Json::parse("{").is_err());
}

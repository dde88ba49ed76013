"""Chat templates of every style, and what happens to the images in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecokv_local.errors import TemplateError
from ecokv_local.gguf_meta import read_meta
from ecokv_local.images import ImageInput
from ecokv_local.messages import Message
from ecokv_local.prompt import MEDIA_MARKER, ChatTemplate, RenderedPrompt

IMAGE = ImageInput(b"", "a.png")
HEAD = "{% for m in messages %}[{{ m['role'] }}]"
TAIL = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
LOOP = "{% for part in m['content'] %}{% if part['type'] == 'image' %}"
TEXT = "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"

STRING = HEAD + "{{ m['content'] }}" + TAIL
CONCATENATED = HEAD + "{{ '' + m['content'] + '' }}" + TAIL
#: typed parts only; image parts are left out
TYPED = (
    HEAD + "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %}" + TAIL
)
#: the trap: given a string it iterates over letters, each without a 'type'
OWN = {
    "llava": HEAD + LOOP + "<image>" + TEXT + TAIL,
    "qwen": HEAD + LOOP + "<|vision_start|><|image_pad|><|vision_end|>" + TEXT + TAIL,
    "gemma": HEAD + LOOP + "<start_of_image>" + TEXT + TAIL,
    "pixtral": HEAD + LOOP + "[IMG]" + TEXT + TAIL,
    "glm": HEAD + LOOP + "<|begin_of_image|><|image|><|end_of_image|>" + TEXT + TAIL,
}
#: knows neither: prints whatever list it is given, and refuses strings
PRINTS_LIST = (
    HEAD + "{% if m['content'] is string %}{{ raise_exception('content must be a list') }}"
    "{% endif %}{{ m['content'] }}" + TAIL
)
DROPS = HEAD + "hello" + TAIL


def render(source: str | None, *messages: Message, **options: bool) -> RenderedPrompt:
    return ChatTemplate(source, name="some-model.gguf").render(messages, **options)


def user(text: str, n_images: int = 0) -> Message:
    return Message("user", text, (IMAGE,) * n_images)


@pytest.mark.parametrize("source", [STRING, CONCATENATED, TYPED])
def test_P26_images_stand_first_each_on_its_line(source: str) -> None:
    prompt = render(source, user("What is it?", 2))
    assert prompt.text == f"[user]{MEDIA_MARKER}\n{MEDIA_MARKER}\nWhat is it?[assistant]"
    assert prompt.n_markers == 2 and prompt.warnings == ()


@pytest.mark.parametrize("style", OWN)
def test_P26_own_image_tokens_become_markers(style: str) -> None:
    prompt = render(
        OWN[style], user("What is it?", 2), Message("assistant", "A star."), user("Eh?")
    )
    assert prompt.text == (
        f"[user]{MEDIA_MARKER}\n{MEDIA_MARKER}\nWhat is it?[assistant]A star.[user]Eh?[assistant]"
    )
    assert prompt.n_markers == 2


@pytest.mark.parametrize("style", OWN)
def test_P26_own_image_tokens_in_the_users_text_are_not_images(style: str) -> None:
    text = "what do <image>, <|image_pad|>, [IMG] and <start_of_image> mean?"
    prompt = render(OWN[style], user(text, 1))
    assert prompt.n_markers == prompt.text.count(MEDIA_MARKER) == 1
    assert text in prompt.text


@pytest.mark.parametrize("n_images", [0, 1])
def test_P26_a_template_that_prints_the_python_list_is_refused(n_images: int) -> None:
    with pytest.raises(TemplateError, match=r"some-model\.gguf.*list") as caught:
        render(PRINTS_LIST, user("What is it?", n_images))
    assert caught.value.hint and caught.value.exit_code == 4


def test_P26_a_user_may_write_a_python_list() -> None:
    text = "[{'type': 'image'}] is what?"
    assert render(STRING, user(text)).text == f"[user]{text}[assistant]"


@pytest.mark.parametrize("n_images", [0, 1])
def test_P26_a_template_that_drops_the_content_is_refused(n_images: int) -> None:
    with pytest.raises(TemplateError, match=r"some-model\.gguf"):
        render(DROPS, user("What is it?", n_images))


def test_P26_a_template_that_doubles_the_content_is_refused_with_counts() -> None:
    source = HEAD + "{{ m['content'] }}{{ m['content'] }}" + TAIL
    with pytest.raises(TemplateError, match="2 media markers for 1 images"):
        render(source, user("What is it?", 1))


def test_P26_no_template_gives_chatml_and_says_so() -> None:
    prompt = render(None, Message("system", "Be brief."), user("Hi", 1))
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{MEDIA_MARKER}\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.n_markers == 1
    assert len(prompt.warnings) == 1 and "some-model.gguf" in prompt.warnings[0]


@pytest.mark.parametrize("source", [STRING, TYPED, OWN["llava"], OWN["qwen"], None])
@given(
    pieces=st.lists(st.sampled_from([MEDIA_MARKER, "<", "<__", "media", "__>", "a ", "\n"])),
    n_images=st.integers(0, 3),
)
def test_P26_the_marker_in_a_text_is_never_an_image(
    source: str | None, pieces: list[str], n_images: int
) -> None:
    text = "".join(pieces)
    prompt = render(source, user(text, n_images))
    assert prompt.n_markers == prompt.text.count(MEDIA_MARKER) == n_images
    assert text.strip() in prompt.text.replace("\u200b", "")  # readable as it was


def test_P26_system_prompt_that_the_template_refuses_is_put_before_the_question() -> None:
    source = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    prompt = render(source + STRING, Message("system", "Be brief."), user("Hi", 1))
    assert prompt.text == f"[user]{MEDIA_MARKER}\nBe brief.\n\nHi[assistant]"
    assert len(prompt.warnings) == 1 and "system" in prompt.warnings[0]


def test_P26_system_prompt_that_the_template_drops_is_named() -> None:
    source = STRING.replace("messages %}", "messages if m['role'] != 'system' %}")
    prompt = render(source, Message("system", "Be brief."), user("Hi"))
    assert prompt.text == "[user]Hi[assistant]"
    assert len(prompt.warnings) == 1 and "drops the system prompt" in prompt.warnings[0]


def test_images_of_every_turn_keep_their_order() -> None:
    messages = [user("one", 1), Message("assistant", "1"), user("two", 2)]
    text = render(STRING, *messages).text
    mark = MEDIA_MARKER + "\n"
    assert text == f"[user]{mark}one[assistant]1[user]{mark}{mark}two[assistant]"


def test_a_later_prompt_begins_with_the_earlier_one_and_its_answer() -> None:
    first = render(STRING, user("one", 1)).text
    later = render(STRING, user("one", 1), Message("assistant", "1"), user("two")).text
    assert later.startswith(first + "1")


def test_no_generation_prompt() -> None:
    assert render(STRING, user("Hi"), add_generation_prompt=False).text == "[user]Hi"


def test_an_image_without_a_text() -> None:
    for source in (STRING, TYPED, *OWN.values()):
        assert render(source, user("", 1)).text.strip().startswith(f"[user]{MEDIA_MARKER}")


def test_helpers_of_the_templates() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%Y') | length }}{{ {'ä': '<'} | tojson }}"
        "{% for m in messages %}\n  {% if loop.first %}\n{% generation %}{{ m['content'] }}"
        "{% endgeneration %}{% continue %}{% endif %}\n{% endfor %}{{ eos_token }}"
    )
    template = ChatTemplate(source, name="m", bos_token="<s>", eos_token="</s>")
    assert template.render([user("Hi")]).text == '<s>4{"ä": "<"}Hi</s>'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}{{ messages[0]['content'] }}",
        "{{ messages.append(1) }}{{ messages[0]['content'] }}",
        "{{ cycler.__init__.__globals__.os }}{{ messages[0]['content'] }}",
    ],
)
def test_templates_run_in_a_sandbox(source: str) -> None:
    with pytest.raises(TemplateError, match=r"some-model\.gguf"):
        render(source, user("Hi"))


@pytest.mark.parametrize("source", ["{% for %}", "{{", "{% unknown %}"])
def test_a_broken_template_names_the_model(source: str) -> None:
    with pytest.raises(TemplateError, match=r"some-model\.gguf: its chat template cannot be read"):
        ChatTemplate(source, name="some-model.gguf")


def test_a_template_that_fails_names_the_reason() -> None:
    with pytest.raises(TemplateError, match=r"some-model\.gguf.*roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", user("Hi"))


def test_P26_smollm2(smollm2_path: Path) -> None:
    source = read_meta(smollm2_path).chat_template
    assert source
    template = ChatTemplate(source, name=smollm2_path.name, bos_token="<|im_start|>")
    prompt = template.render([Message("system", "Be brief."), user("What colour is it?", 1)])
    assert prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{MEDIA_MARKER}\nWhat colour is it?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.n_markers == 1 and prompt.warnings == ()


def test_the_marker_is_the_one_of_the_pin() -> None:
    from ecokv_local import native

    assert native.load_mtmd().mtmd_default_marker() == MEDIA_MARKER.encode()

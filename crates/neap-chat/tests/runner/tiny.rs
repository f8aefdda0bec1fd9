//! A decoder of the llama kind with two layers, a vocabulary of bytes and a template for chats.

use neap_testing::{GgufWriter, TensorType};

/// As GPT-2 spells it: bytes that do not show are letters from 256 on.
fn spelt(byte: u8) -> String {
    let shows = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let hidden = (0..byte).filter(|b| !shows(*b)).count() as u32;
    let letter = if shows(byte) {
        u32::from(byte)
    } else {
        256 + hidden
    };
    char::from_u32(letter).unwrap().to_string()
}

pub const END: u32 = 256;

pub fn tiny(seed: u64) -> Vec<u8> {
    writer(seed).finish()
}

/// To be written in one file or several.
pub fn writer(seed: u64) -> GgufWriter {
    writer_of("llama", seed)
}

/// The same of another kind: of `phi3` all layers have a window, of `lfm2` the first one has a convolution.
pub fn writer_of(architecture: &str, seed: u64) -> GgufWriter {
    const WIDTH: usize = 64;
    const INNER: usize = 96;
    let mut tokens: Vec<String> = (0..=255).map(spelt).collect();
    tokens.extend(["<|im_end|>", "<|im_start|>", "he", "<think>", "</think>"].map(str::to_owned));
    let mut kinds = vec![1; tokens.len()];
    kinds[256] = 3;
    kinds[257] = 3;
    kinds[259] = 4;
    kinds[260] = 4;
    let mut file = GgufWriter::new(architecture, seed);
    let key = |name: &str| format!("{architecture}.{name}");
    match architecture {
        "lfm2" => file
            .numbers(&key("attention.head_count_kv"), &[0, 2])
            .number(&key("shortconv.l_cache"), 3),
        "phi3" => file
            .number(&key("attention.head_count_kv"), 2)
            .number(&key("attention.sliding_window"), 20),
        _ => file.number(&key("attention.head_count_kv"), 2),
    };
    file.number(&key("block_count"), 2)
        .number(&key("embedding_length"), WIDTH as u32)
        .number(&key("attention.head_count"), 4)
        .number(&key("feed_forward_length"), INNER as u32)
        .number(&key("context_length"), 4096)
        .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .numbers("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &["h e"])
        .number("tokenizer.ggml.eos_token_id", END)
        .text(
            "tokenizer.chat_template",
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
        );
    let mut matrix = |name: &str, ty, rows, k, magnitude| {
        file.random(name, ty, &[k, rows], 0.0, magnitude);
    };
    let vocabulary = tokens.len();
    matrix(
        "token_embd.weight",
        TensorType::Q8_0,
        vocabulary,
        WIDTH,
        1.0,
    );
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        if architecture == "lfm2" && layer == 0 {
            matrix(&name("shortconv.conv"), TensorType::F32, WIDTH, 3, 0.8);
            matrix(
                &name("shortconv.in_proj"),
                TensorType::Q4_0,
                3 * WIDTH,
                WIDTH,
                0.4,
            );
            matrix(
                &name("shortconv.out_proj"),
                TensorType::Q8_0,
                WIDTH,
                WIDTH,
                0.4,
            );
        } else {
            matrix(&name("attn_q"), TensorType::Q4_0, WIDTH, WIDTH, 0.4);
            matrix(&name("attn_k"), TensorType::Q4_0, WIDTH / 2, WIDTH, 0.4);
            matrix(&name("attn_v"), TensorType::Q4_1, WIDTH / 2, WIDTH, 0.4);
            matrix(&name("attn_output"), TensorType::Q8_0, WIDTH, WIDTH, 0.4);
        }
        matrix(&name("ffn_gate"), TensorType::F16, INNER, WIDTH, 0.4);
        matrix(&name("ffn_up"), TensorType::Q4_1, INNER, WIDTH, 0.4);
        matrix(&name("ffn_down"), TensorType::Q8_0, WIDTH, INNER, 0.4);
    }
    let mut vector = |name: &str| {
        file.random(name, TensorType::F32, &[WIDTH], 1.0, 0.1);
    };
    for layer in 0..2 {
        vector(&format!("blk.{layer}.attn_norm.weight"));
        vector(&format!("blk.{layer}.ffn_norm.weight"));
    }
    vector("output_norm.weight");
    file
}

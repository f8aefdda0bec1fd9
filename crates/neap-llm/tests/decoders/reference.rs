//! A decoder in plain loops of `f64`, from dequantised weights: what results should be.

use neap_gguf::{Header, Value, dequantize};
use std::collections::HashMap;
use std::io::Cursor;

pub struct Reference {
    header: Header,
    tensors: HashMap<String, Vec<f64>>,
    architecture: String,
}

impl Reference {
    pub fn new(bytes: &[u8]) -> Reference {
        let header = Header::read(Cursor::new(bytes), bytes.len() as u64).expect("a GGUF file");
        let tensors = header.tensors.iter().map(|tensor| {
            let mut x = vec![0.0f32; tensor.elements() as usize];
            let range = tensor.range.start as usize..tensor.range.end as usize;
            dequantize(tensor.kind, &bytes[range], &mut x).expect("known blocks");
            (tensor.name.clone(), x.into_iter().map(f64::from).collect())
        });
        Reference {
            tensors: tensors.collect(),
            architecture: header
                .get("general.architecture")
                .and_then(Value::as_text)
                .unwrap()
                .to_owned(),
            header,
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.header.get(&format!("{}.{key}", self.architecture))? {
            Value::Float(x) => Some(*x),
            other => other.as_u64().map(|n| n as f64),
        }
    }

    fn size(&self, key: &str) -> usize {
        self.number(key).expect(key) as usize
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.tensors[name].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum())
            .collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let epsilon = self.number("attention.layer_norm_rms_epsilon").unwrap();
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + epsilon).sqrt();
        x.iter()
            .zip(&self.tensors[name])
            .map(|(x, w)| x * scale * w)
            .collect()
    }

    fn maybe_norm(&self, name: &str, x: Vec<f64>) -> Vec<f64> {
        match self.has(name) {
            true => self.norm(name, &x),
            false => x,
        }
    }

    fn biased(&self, name: &str, mut x: Vec<f64>) -> Vec<f64> {
        if let Some(bias) = self.tensors.get(name) {
            x.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
        x
    }

    /// The angle of a pair at position 1, and what sines and cosines are multiplied by; of a text in a long context.
    fn turn(&self, pair: usize, dims: usize, base: f64, is_local: bool) -> (f64, f64) {
        let factors = self
            .tensors
            .get("rope_freqs.weight")
            .or_else(|| self.tensors.get("rope_factors_long.weight"));
        let factor = factors.map_or(1.0, |f| f[pair]);
        let whole = base.powf(-2.0 * pair as f64 / dims as f64) / factor;
        let by = self.number("rope.scaling.factor").unwrap_or(1.0);
        let scaling = match self
            .header
            .get(&format!("{}.rope.scaling.type", self.architecture))
        {
            Some(Value::Text(text)) if !(is_local && self.architecture == "gemma3") => &text[..],
            _ => "none",
        };
        match scaling {
            "linear" => (whole / by, 1.0),
            "longrope" => (whole, self.number("rope.scaling.attn_factor").unwrap()),
            "yarn" => {
                let original = self.number("rope.scaling.original_context_length").unwrap();
                // Where a pair turns 32 times, and once, over the positions of the original context.
                let at = |turns: f64| {
                    dims as f64 * (original / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * base.ln())
                };
                let low = at(32.0).floor().max(0.0);
                let high = at(1.0).ceil().min(dims as f64 - 1.0);
                let along = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let angle = whole * (1.0 - along) + whole / by * along;
                (angle, 0.1 * by.ln() + 1.0)
            }
            _ => (whole, 1.0),
        }
    }

    fn rotate(&self, head: &mut [f64], position: usize, base: f64, is_local: bool) {
        let pairs = head.len() / 2;
        let neighbours = ["llama", "smollm3", "granite"].contains(&&*self.architecture);
        for i in 0..pairs {
            let (angle, magnitude) = self.turn(i, head.len(), base, is_local);
            let angle = position as f64 * angle;
            let (a, b) = if neighbours {
                (2 * i, 2 * i + 1)
            } else {
                (i, i + pairs)
            };
            let (x, y) = (head[a] * magnitude, head[b] * magnitude);
            head[a] = x * angle.cos() - y * angle.sin();
            head[b] = x * angle.sin() + y * angle.cos();
        }
    }

    /// What a row's experts give together.
    fn mixture(&self, layer: usize, h: &[f64]) -> Vec<f64> {
        let name = |part: &str, what: &str| format!("blk.{layer}.ffn_{part}.{what}");
        let scores = self.product(&name("gate_inp", "weight"), h);
        let scores = self.biased(&name("gate_inp", "bias"), scores);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(self.size("expert_used_count"));
        let sum: f64 = match &*self.architecture {
            "olmoe" => scores.iter().map(|s| s.exp()).sum(),
            _ => order.iter().map(|e| scores[*e].exp()).sum(),
        };
        let mut out = vec![0.0; h.len()];
        for expert in order {
            let product = |part: &str, x: &[f64]| -> Vec<f64> {
                let all = &self.tensors[&name(part, "weight")];
                let len = all.len() / scores.len();
                let rows = all[expert * len..][..len].chunks_exact(x.len());
                let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
                let mut y: Vec<f64> = rows.map(dot).collect();
                if let Some(bias) = self.tensors.get(&name(part, "bias")) {
                    let bias = &bias[expert * y.len()..];
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
                y
            };
            let (gate, up) = (product("gate_exps", h), product("up_exps", h));
            let inner = gate
                .iter()
                .zip(&up)
                .map(|(g, u)| match &*self.architecture {
                    "gpt-oss" => {
                        let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                        g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
                    }
                    _ => g / (1.0 + (-g).exp()) * u,
                });
            let inner: Vec<f64> = inner.collect();
            let weight = scores[expert].exp() / sum;
            let y = product("down_exps", &inner);
            out.iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
        }
        out
    }

    /// The inner layer, or experts.
    fn inner(&self, layer: usize, x: &mut [f64], is_gemma: bool, residual: f64) {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let norm = match &*self.architecture {
            "gpt-oss" => "post_attention_norm.weight",
            _ => "ffn_norm.weight",
        };
        let h = self.norm(&name(norm), x);
        if self.has(&name("ffn_gate_inp.weight")) {
            let y = self.mixture(layer, &h);
            x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            return;
        }
        let (gate, up) = match self.has(&name("ffn_gate.weight")) {
            true => (
                self.product(&name("ffn_gate.weight"), &h),
                self.product(&name("ffn_up.weight"), &h),
            ),
            false => {
                let both = self.product(&name("ffn_up.weight"), &h);
                let (gate, up) = both.split_at(both.len() / 2);
                (gate.to_vec(), up.to_vec())
            }
        };
        let activation = |g: f64| match is_gemma {
            true => {
                0.5 * g * (1.0 + (0.797_884_560_802_865_4 * (g + 0.044_715 * g * g * g)).tanh())
            }
            false => g / (1.0 + (-g).exp()),
        };
        let inner: Vec<f64> = gate
            .iter()
            .zip(&up)
            .map(|(g, u)| activation(*g) * u)
            .collect();
        let y = self.product(&name("ffn_down.weight"), &inner);
        let y = self.maybe_norm(&name("post_ffw_norm.weight"), y);
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y * residual);
    }

    /// Logits of every token.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let (layers, width) = (self.size("block_count"), self.size("embedding_length"));
        let (heads, head) = (
            self.size("attention.head_count"),
            self.size("attention.key_length"),
        );
        let kv_heads = match self.number("attention.head_count_kv") {
            Some(heads) => heads as usize,
            // One number for each layer.
            None => self.tensors["blk.2.attn_k.weight"].len() / width / head,
        };
        let is_gemma = self.architecture == "gemma3";
        let residual = self.number("residual_scale").unwrap_or(1.0);
        let scale = self
            .number("attention.scale")
            .unwrap_or(1.0 / (head as f64).sqrt());
        let embedding_scale = match is_gemma {
            true => (width as f64).sqrt(),
            false => self.number("embedding_scale").unwrap_or(1.0),
        };
        let embedding = &self.tensors["token_embd.weight"];
        let mut xs: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&t| {
                embedding[t as usize * width..][..width]
                    .iter()
                    .map(|x| x * embedding_scale)
                    .collect()
            })
            .collect();
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let is_gpt_oss = self.architecture == "gpt-oss";
            let is_local = is_gemma && (layer + 1) % 6 != 0 || is_gpt_oss && layer % 2 == 0;
            let base = if is_local && is_gemma {
                10_000.0
            } else {
                self.number("rope.freq_base").unwrap()
            };
            let window = if is_local {
                self.size("attention.sliding_window")
            } else {
                usize::MAX
            };
            let is_rotated = self.architecture != "smollm3" || (layer + 1) % 4 != 0;
            let (mut ks, mut vs): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
            let mut seen: Vec<Vec<f64>> = Vec::new();
            for (position, x) in xs.iter_mut().enumerate() {
                let h = self.norm(&name("attn_norm.weight"), x);
                if let Some(taps) = self.tensors.get(&name("shortconv.conv.weight")) {
                    let all = self.product(&name("shortconv.in_proj.weight"), &h);
                    let parts: Vec<&[f64]> = all.chunks_exact(width).collect();
                    seen.push(parts[0].iter().zip(parts[2]).map(|(b, x)| b * x).collect());
                    let count = taps.len() / width;
                    let of_element = |e: usize| -> f64 {
                        let back =
                            |tap: usize| Some(&seen[(position + tap + 1).checked_sub(count)?]);
                        let tap = |tap| back(tap).map_or(0.0, |bx| taps[e * count + tap] * bx[e]);
                        parts[1][e] * (0..count).map(tap).sum::<f64>()
                    };
                    let y: Vec<f64> = (0..width).map(of_element).collect();
                    let y = self.product(&name("shortconv.out_proj.weight"), &y);
                    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
                    self.inner(layer, x, is_gemma, residual);
                    continue;
                }
                let (mut q, mut k, v) = if self.has(&name("attn_qkv.weight")) {
                    let all = self.product(&name("attn_qkv.weight"), &h);
                    let (q, kv) = all.split_at(heads * head);
                    let (k, v) = kv.split_at(kv_heads * head);
                    (q.to_vec(), k.to_vec(), v.to_vec())
                } else {
                    let of = |part: &str| {
                        let y = self.product(&name(&format!("attn_{part}.weight")), &h);
                        self.biased(&name(&format!("attn_{part}.bias")), y)
                    };
                    (of("q"), of("k"), of("v"))
                };
                for (part, x) in [
                    ("attn_q_norm.weight", &mut q),
                    ("attn_k_norm.weight", &mut k),
                ] {
                    if self.architecture == "olmoe" {
                        *x = self.norm(&name(part), x);
                    }
                    for head in x.chunks_exact_mut(head) {
                        if self.architecture != "olmoe" {
                            let normed = self.maybe_norm(&name(part), head.to_vec());
                            head.copy_from_slice(&normed);
                        }
                        if is_rotated {
                            self.rotate(head, position, base, is_local);
                        }
                    }
                }
                ks.push(k);
                vs.push(v);
                let mut out = Vec::new();
                for (index, q) in q.chunks_exact(head).enumerate() {
                    let at = index / (heads / kv_heads) * head;
                    let from = (position + 1).saturating_sub(window);
                    let score = |k: &Vec<f64>| -> f64 {
                        q.iter().zip(&k[at..]).map(|(q, k)| q * k).sum::<f64>() * scale
                    };
                    let scores: Vec<f64> = ks[from..].iter().map(score).collect();
                    let most = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
                    let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                    let sink = self.tensors.get(&name("attn_sinks.weight"));
                    let sink = sink.map_or(0.0, |sinks| (sinks[index] - most).exp());
                    let sum: f64 = weights.iter().sum::<f64>() + sink;
                    for e in 0..head {
                        let value = |(w, v): (&f64, &Vec<f64>)| w * v[at + e];
                        out.push(weights.iter().zip(&vs[from..]).map(value).sum::<f64>() / sum);
                    }
                }
                let y = self.product(&name("attn_output.weight"), &out);
                let y = self.biased(&name("attn_output.bias"), y);
                let y = match is_gpt_oss {
                    true => y,
                    false => self.maybe_norm(&name("post_attention_norm.weight"), y),
                };
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y * residual);
                self.inner(layer, x, is_gemma, residual);
            }
        }
        let output = match self.has("output.weight") {
            true => "output.weight",
            false => "token_embd.weight",
        };
        let last_norm = match &*self.architecture {
            "lfm2" => "token_embd_norm.weight",
            _ => "output_norm.weight",
        };
        let divisor = self.number("logit_scale").unwrap_or(1.0);
        let last = |x: &Vec<f64>| -> Vec<f64> {
            let logits = self.product(output, &self.norm(last_norm, x));
            logits.iter().map(|l| l / divisor).collect()
        };
        xs.iter().map(last).collect()
    }
}

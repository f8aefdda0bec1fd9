//! GGUF files as tests write them: seeded weights of any type, in memory.

/// Types of tensors, by GGUF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q8_0 = 8,
    Q4K = 12,
    Q6K = 14,
    Mxfp4 = 39,
}

impl TensorType {
    /// Elements and bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            TensorType::F32 => (1, 4),
            TensorType::F16 => (1, 2),
            TensorType::Q4_0 => (32, 18),
            TensorType::Q4_1 => (32, 20),
            TensorType::Q8_0 => (32, 34),
            TensorType::Q4K => (256, 144),
            TensorType::Q6K => (256, 210),
            TensorType::Mxfp4 => (32, 17),
        }
    }
}

/// A file that grows by metadata and tensors.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    pairs: Vec<u8>,
    pair_count: u64,
    tensors: Vec<Tensor>,
    seed: u64,
}

#[derive(Debug, Clone)]
struct Tensor {
    /// Name, sizes and type.
    info: Vec<u8>,
    data: Vec<u8>,
}

const ALIGNMENT: usize = 32;

impl GgufWriter {
    /// Without anything; weights follow from the seed.
    #[must_use]
    pub fn new(architecture: &str, seed: u64) -> GgufWriter {
        let mut writer = GgufWriter {
            pairs: Vec::new(),
            pair_count: 0,
            tensors: Vec::new(),
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        writer.text("general.architecture", architecture);
        writer
    }

    fn pair(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        put_text(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
        self
    }

    pub fn number(&mut self, key: &str, value: u32) -> &mut Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub fn float(&mut self, key: &str, value: f32) -> &mut Self {
        self.pair(key, 6, &value.to_le_bytes())
    }

    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.pair(key, 7, &[u8::from(value)])
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        put_text(&mut bytes, value);
        self.pair(key, 8, &bytes)
    }

    pub fn texts<T: AsRef<str>>(&mut self, key: &str, values: &[T]) -> &mut Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| put_text(&mut bytes, v.as_ref()));
        self.pair(key, 9, &bytes)
    }

    pub fn floats(&mut self, key: &str, values: &[f32]) -> &mut Self {
        let mut bytes = 6u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.pair(key, 9, &bytes)
    }

    pub fn numbers(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.pair(key, 9, &bytes)
    }

    /// A tensor of random weights of about that magnitude around `mean`; `sizes` begin with the length of a row.
    ///
    /// # Panics
    /// Rows are not whole blocks.
    pub fn random(
        &mut self,
        name: &str,
        ty: TensorType,
        sizes: &[usize],
        mean: f32,
        magnitude: f32,
    ) -> &mut Self {
        let (elements, bytes) = ty.block();
        assert!(sizes[0].is_multiple_of(elements), "rows are whole blocks");
        let mut info = Vec::new();
        put_text(&mut info, name);
        info.extend((sizes.len() as u32).to_le_bytes());
        for &size in sizes {
            info.extend((size as u64).to_le_bytes());
        }
        info.extend((ty as u32).to_le_bytes());
        let mut data = Vec::new();
        let blocks = sizes.iter().product::<usize>() / elements;
        for _ in 0..blocks {
            let at = data.len();
            for _ in 0..bytes {
                data.push((self.next() >> 40) as u8);
            }
            let noise = mean + magnitude * self.uniform();
            let block = &mut data[at..];
            match ty {
                TensorType::F32 => block.copy_from_slice(&noise.to_le_bytes()),
                TensorType::F16 => block.copy_from_slice(&half(noise)),
                TensorType::Q4_0 => block[..2].copy_from_slice(&half(magnitude / 8.0)),
                TensorType::Q4_1 => {
                    block[..2].copy_from_slice(&half(magnitude / 8.0));
                    block[2..4].copy_from_slice(&half(-magnitude));
                }
                TensorType::Q8_0 => block[..2].copy_from_slice(&half(magnitude / 127.0)),
                TensorType::Q4K => {
                    block[..2].copy_from_slice(&half(magnitude / 1024.0));
                    block[2..4].copy_from_slice(&half(magnitude / 128.0));
                }
                TensorType::Q6K => block[208..].copy_from_slice(&half(magnitude / 2048.0)),
                // A power of two; the largest element is six of it.
                TensorType::Mxfp4 => block[0] = (127.0 + (magnitude / 6.0).log2().floor()) as u8,
            }
        }
        self.tensors.push(Tensor { info, data });
        self
    }

    /// The file.
    #[must_use]
    pub fn finish(&self) -> Vec<u8> {
        self.file(&self.tensors)
    }

    /// The model in so many files, about as many tensors in each; the first has the metadata.
    #[must_use]
    pub fn split(&self, count: usize) -> Vec<Vec<u8>> {
        let part = |index: usize| {
            let bound = |index| index * self.tensors.len() / count;
            let mut writer = match index {
                0 => self.clone(),
                _ => GgufWriter {
                    pairs: Vec::new(),
                    pair_count: 0,
                    ..self.clone()
                },
            };
            writer
                .number("split.no", index as u32)
                .number("split.count", count as u32)
                .number("split.tensors.count", self.tensors.len() as u32);
            writer.file(&self.tensors[bound(index)..bound(index + 1)])
        };
        (0..count).map(part).collect()
    }

    fn file(&self, tensors: &[Tensor]) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((tensors.len() as u64).to_le_bytes());
        file.extend(self.pair_count.to_le_bytes());
        file.extend(&self.pairs);
        let mut data = Vec::new();
        for tensor in tensors {
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
            file.extend(&tensor.info);
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(&data);
        file
    }

    fn next(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In -1..1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

/// Of a number whose half is normal: the nearest below in magnitude.
fn half(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let exponent = ((bits >> 23) & 0xff) as i32 - 112;
    let half = match exponent {
        ..=0 => 0,
        31.. => 0x7bff,
        _ => ((exponent as u16) << 10) | ((bits >> 13) & 0x3ff) as u16,
    };
    (sign | half).to_le_bytes()
}

//! Seeded activations and blocks.

use neap_blocks::BlockType;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Half-precision bits: a sign, some of all exponents of finite numbers, or `None` for those near 1.
    fn half(&mut self, scales: Scales) -> [u8; 2] {
        let bits = self.next() as u16;
        let exponent = match scales {
            Scales::Usual => 8 + self.below(6) as u16,
            Scales::Extreme => self.below(31) as u16,
        };
        (bits & 0x83ff | exponent << 10).to_le_bytes()
    }

    /// `rows` rows of `k` elements. Bytes are random; scales and minima are finite.
    pub fn blocks(&mut self, ty: BlockType, k: usize, rows: usize, scales: Scales) -> Vec<u8> {
        let mut bytes = vec![0; rows * ty.row_bytes(k)];
        bytes.fill_with(|| self.next() as u8);
        let floats: &[usize] = match ty {
            BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
            BlockType::Q2K => &[80, 82],
            BlockType::Q3K => &[108],
            BlockType::Q6K => &[208],
            BlockType::F32 | BlockType::Bf16 | BlockType::Mxfp4 => &[],
            _ => &[0],
        };
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for &at in floats {
                block[at..at + 2].copy_from_slice(&self.half(scales));
            }
            match (ty, scales) {
                (BlockType::F32, _) => block.copy_from_slice(&self.unit().to_le_bytes()),
                (BlockType::Bf16, _) => block.copy_from_slice(&self.unit().to_le_bytes()[2..]),
                (BlockType::Mxfp4, Scales::Usual) => block[0] = 120 + self.below(6) as u8,
                (BlockType::Mxfp4, Scales::Extreme) => block[0] = self.below(200) as u8,
                _ => {}
            }
        }
        bytes
    }
}

/// How scales of blocks are drawn.
#[derive(Debug, Clone, Copy)]
pub enum Scales {
    /// Within a few powers of two.
    Usual,
    /// From subnormal numbers to the largest.
    Extreme,
}

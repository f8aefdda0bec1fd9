//! Blocks of every type against ggml's own reference: values made by the Python package `gguf` from the same bytes.
#![forbid(unsafe_code)]

use neap_gguf::{Error, Kind, dequantize};

/// Where blocks have half floats; the first element of the second block; the bits of all elements of four blocks, as one number
/// (FNV-1a).
const EXPECTED: &[(Kind, &[usize], f32, u64)] = &[
    (Kind::Q4_0, &[0], 0.36035156, 0x7f6a13a58c01cbbe),
    (Kind::Q4_1, &[0, 2], -2.0621338, 0x13cce4f78ce5395e),
    (Kind::Q5_0, &[0], 2.522461, 0x17d5f485477fdd8e),
    (Kind::Q5_1, &[0, 2], -1.3414307, 0x887643d052ccc1d0),
    (Kind::Q8_0, &[0], -21.260742, 0xc385961e81079d73),
    (Kind::Q2K, &[80, 82], -0.49987793, 0x94839234751a7cd5),
    (Kind::Q3K, &[108], -17.296875, 0x2911958f4b66fa9e),
    (Kind::Q4K, &[0, 2], -3.9990234, 0xe802a21eea782f18),
    (Kind::Q5K, &[0, 2], -3.9990234, 0x165c1641603675fc),
    (Kind::Q6K, &[208], -369.0, 0x85c3cae914bf9463),
    (Kind::Iq4Nl, &[0], 3.9638672, 0xcc3228ca0398e7cf),
    (Kind::Iq4Xs, &[0], -0.7207031, 0x17bec4a6871d383f),
    (Kind::Mxfp4, &[], -7.052966e-38, 0xf5154f9306342155),
    (Kind::F16, &[0], -0.18017578, 0xac0783aa25c23685),
    (Kind::Bf16, &[0], -5.7043508e-09, 0x7ba297f07bb10c11),
];

/// Four blocks of bytes that look random, with sensible half floats.
fn bytes_of(kind: Kind, halves: &[usize]) -> Vec<u8> {
    let len = kind.block_bytes() as usize;
    let mut bytes: Vec<u8> = (0..4 * len)
        .map(|i| (i * i * 31 + i * 17 + len) as u8)
        .collect();
    for block in 0..4 {
        for (j, offset) in halves.iter().enumerate() {
            let half: u16 = [0x2e66, 0xb1c4][(block + j) % 2];
            bytes[block * len + offset..][..2].copy_from_slice(&half.to_le_bytes());
        }
        if kind == Kind::Mxfp4 {
            bytes[block * len] = [0, 1, 120, 131][block];
        }
    }
    bytes
}

fn fnv(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn blocks_of_every_type_are_the_values_of_the_reference() {
    for &(kind, halves, first, all) in EXPECTED {
        let elements = kind.block_elements() as usize;
        let mut values = vec![f32::NAN; 4 * elements];
        dequantize(kind, &bytes_of(kind, halves), &mut values).expect("known blocks");
        assert_eq!(values[elements], first, "{kind}");
        assert_eq!(fnv(&values), all, "{kind}: {:?}", &values[..8]);
    }
}

#[test]
fn types_whose_blocks_are_not_known_are_refused_by_name() {
    let error = dequantize(Kind::Iq2Xxs, &[0; 66], &mut [0.0; 256]).unwrap_err();
    assert!(matches!(error, Error::NotComputed(Kind::Iq2Xxs)));
    assert_eq!(
        error.to_string(),
        "weights of type IQ2_XXS are not supported"
    );
}

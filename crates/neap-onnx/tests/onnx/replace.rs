//! Initializers are read as they are stored, wherever their data are.

use crate::support::*;
use neap_onnx::Replaceable;

#[test]
fn data_are_found_in_every_form() {
    let values = [1.0f32, -2.5, 0.25];
    let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let halves: Vec<u8> = [0x3c00u16, 0xc100]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let entry = |key: &str, value: &str| Bytes::default().string(1, key).string(2, value);
    let outside = tensor_head("outside", FLOAT, &[3])
        .message(13, &entry("location", "weights.bin"))
        .message(13, &entry("offset", "8"))
        .message(13, &entry("length", "12"))
        .int(14, 1);
    let model = Model::new(13)
        .input("x", FLOAT, &[3])
        .constant(&f32_tensor("raw", &[3], &values))
        .constant(&tensor_head("listed", FLOAT, &[3]).bytes(4, &raw))
        .constant(&tensor("halves", FLOAT16, &[2], &halves))
        .constant(&outside)
        .node("Add", &["x", "raw"], &["y"], &[])
        .output("y");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.bytes()).unwrap();
    std::fs::write(
        folder.path().join("weights.bin"),
        [&[9; 8][..], &raw].concat(),
    )
    .unwrap();
    let mut file = Replaceable::open(&path).unwrap();
    let mut data = |name: &str| file.data(name).unwrap();
    for name in ["raw", "listed", "outside"] {
        assert_eq!(data(name).as_deref(), Some(&raw[..]), "{name}");
    }
    assert_eq!(data("halves"), Some(halves));
    assert_eq!(data("nothing"), None);
}

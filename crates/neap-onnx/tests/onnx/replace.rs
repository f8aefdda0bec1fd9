//! Initializers are read as they are stored, wherever their data are.

use crate::support::*;
use neap_onnx::{DeclaredDim, Initializer, Replaceable};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model's file, in a folder of its own.
fn file(model: &Model) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.bytes()).unwrap();
    (folder, path)
}

/// Writes it again, and reads initializers of what was written as floats.
fn written(changed: &mut Replaceable, folder: &Path) -> (PathBuf, BTreeMap<String, Vec<f32>>) {
    let path = folder.join("written.onnx");
    let mut out = Vec::new();
    let len = changed.len_bytes(&|_| false).unwrap();
    let mut none = |_: &Initializer| Err(std::io::Error::other("nothing is replaced"));
    changed.write(&|_| false, &mut none, &mut out).unwrap();
    assert_eq!(out.len() as u64, len);
    std::fs::write(&path, out).unwrap();
    let mut again = Replaceable::open(&path).unwrap();
    let names: Vec<String> = again.initializers().map(|i| i.name.clone()).collect();
    let mut floats = |name: &String| -> Vec<f32> {
        let bytes = again.data(name).unwrap().unwrap();
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect()
    };
    let found = names
        .iter()
        .map(|name| (name.clone(), floats(name)))
        .collect();
    (path, found)
}

const NORM: &str = "BatchNormalization";

/// Two normalisations, of which everything equal is one initializer, as PyTorch's exporter writes a fresh network.
fn shared() -> Model {
    let mut model = Model::new(17)
        .input("x", FLOAT, &[2, 4, 3, 3])
        .constant(&f32_tensor("bn1.weight", &[4], &[1.0; 4]))
        .constant(&f32_tensor("bn1.bias", &[4], &[0.0; 4]));
    for (from, to) in [
        ("bn1.weight", "bn1.running_var"),
        ("bn1.weight", "bn2.weight"),
        ("bn2.weight", "bn2.running_var"),
        ("bn1.bias", "bn1.running_mean"),
        ("bn1.bias", "bn2.bias"),
        ("bn1.bias", "bn2.running_mean"),
    ] {
        model = model.node("Identity", &[from], &[to], &[]);
    }
    let of = |norm: &str| {
        ["weight", "bias", "running_mean", "running_var"].map(|name| format!("{norm}.{name}"))
    };
    let ([a, b, c, d], [e, f, g, h]) = (of("bn1"), of("bn2"));
    model
        .node(NORM, &["x", &a, &b, &c, &d], &["h"], &[])
        .node(NORM, &["h", &e, &f, &g, &h], &["y"], &[])
        .output("y")
}

#[test]
fn equal_initial_values_that_an_exporter_shared_are_parted() {
    let (folder, path) = file(&shared());
    let mut model = Replaceable::open(&path).unwrap();
    let untied = model.untie().unwrap();
    assert_eq!((untied.parted.len(), untied.kept.len()), (6, 0));
    let (path, found) = written(&mut model, folder.path());
    assert_eq!(found.len(), 8);
    assert_eq!(found["bn2.running_var"], [1.0; 4]);
    assert_eq!(found["bn2.running_mean"], [0.0; 4]);
    let graph = neap_onnx::open(&path, &Default::default()).unwrap();
    assert_eq!(
        operators(&graph),
        ["BatchNormalization", "BatchNormalization"]
    );
    // Nothing is left to be parted.
    assert!(
        Replaceable::open(&path)
            .unwrap()
            .untie()
            .unwrap()
            .parted
            .is_empty()
    );
}

/// As optimisers leave it, which take the copies' nodes away.
#[test]
fn one_initializer_in_places_of_several_kinds_is_parted() {
    let model = Model::new(17)
        .input("x", FLOAT, &[2, 4, 3, 3])
        .constant(&f32_tensor("ones", &[4], &[1.0; 4]))
        .constant(&f32_tensor("zeros", &[4], &[0.0; 4]))
        .node(NORM, &["x", "ones", "zeros", "zeros", "ones"], &["y"], &[])
        .output("y");
    let (folder, path) = file(&model);
    let mut model = Replaceable::open(&path).unwrap();
    assert_eq!(model.untie().unwrap().parted, ["ones.2", "zeros.2"]);
    let (path, found) = written(&mut model, folder.path());
    assert_eq!(found["zeros.2"], [0.0; 4]);
    assert!(neap_onnx::open(&path, &Default::default()).is_ok());
}

#[test]
fn weights_that_are_one_parameter_stay_one() {
    let table: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let model = |is_copied: bool| {
        let model = Model::new(17)
            .input("ids", INT64, &[2])
            .constant(&f32_tensor("embed.weight", &[4, 3], &table));
        let (model, head) = match is_copied {
            true => (
                model.node("Identity", &["embed.weight"], &["head.weight"], &[]),
                "head.weight",
            ),
            false => (model, "embed.weight"),
        };
        model
            .node("Gather", &["embed.weight", "ids"], &["h"], &[])
            .node("Transpose", &[head], &["t"], &[])
            .node("MatMul", &["h", "t"], &["y"], &[])
            .output("y")
    };
    let (_folder, path) = file(&model(true));
    let mut tied = Replaceable::open(&path).unwrap();
    let untied = tied.untie().unwrap();
    assert!(untied.parted.is_empty() && !tied.is_changed());
    let pair = ("embed.weight".to_string(), "head.weight".to_string());
    assert_eq!(untied.kept, [pair]);
    let (_folder, path) = file(&model(false));
    assert!(
        Replaceable::open(&path)
            .unwrap()
            .untie()
            .unwrap()
            .parted
            .is_empty()
    );
}

/// A stack of copies of one layer begins with the same weights, and is none.
#[test]
fn copies_of_a_layer_are_parted() {
    let weight: Vec<f32> = (0..9).map(|i| i as f32).collect();
    let model = Model::new(17)
        .input("x", FLOAT, &[2, 3])
        .constant(&f32_tensor("layers.0.weight", &[3, 3], &weight))
        .node("Identity", &["layers.0.weight"], &["layers.1.weight"], &[])
        .node("MatMul", &["x", "layers.0.weight"], &["h"], &[])
        .node("MatMul", &["h", "layers.1.weight"], &["y"], &[])
        .output("y");
    let (folder, path) = file(&model);
    let mut model = Replaceable::open(&path).unwrap();
    assert_eq!(model.untie().unwrap().parted, ["layers.1.weight"]);
    let (_, found) = written(&mut model, folder.path());
    assert_eq!(found["layers.1.weight"], weight);
}

#[test]
fn nodes_in_training_mode_are_set_to_inference() {
    let statistic = |name: &str, value| f32_tensor(name, &[4], &[value; 4]);
    let model = Model::new(17)
        .input("x", FLOAT, &[2, 4])
        .constant(&statistic("s", 1.0))
        .constant(&statistic("b", 0.0))
        .constant(&statistic("m", 0.5))
        .constant(&statistic("v", 2.0))
        .constant(&f32_tensor("ratio", &[], &[0.5]))
        .constant(&tensor("on", 9, &[], &[1]))
        .node(
            NORM,
            &["x", "s", "b", "m", "v"],
            &["h", "moved_m", "moved_v"],
            &[
                ("epsilon", Attr::Float(1e-3)),
                ("training_mode", Attr::Int(1)),
            ],
        )
        .node("Dropout", &["h", "ratio", "on"], &["y"], &[])
        .output("y");
    let (folder, path) = file(&model);
    let mut model = Replaceable::open(&path).unwrap();
    assert_eq!(model.set_norms_to_inference().unwrap(), 1);
    assert_eq!(model.set_dropouts_to_inference().unwrap(), 1);
    let (path, _) = written(&mut model, folder.path());
    let graph = neap_onnx::open(&path, &Default::default()).unwrap();
    assert_eq!(operators(&graph), ["BatchNormalization"]);
    let mut again = Replaceable::open(&path).unwrap();
    assert_eq!(again.set_norms_to_inference().unwrap(), 0);
    assert_eq!(again.set_dropouts_to_inference().unwrap(), 0);
    assert!(!again.is_changed());
}

#[test]
fn statistics_that_something_reads_are_refused() {
    let statistic = |name: &str| f32_tensor(name, &[4], &[1.0; 4]);
    let model = Model::new(17)
        .input("x", FLOAT, &[2, 4])
        .constant(&statistic("s"))
        .constant(&statistic("b"))
        .constant(&statistic("m"))
        .constant(&statistic("v"))
        .node(
            NORM,
            &["x", "s", "b", "m", "v"],
            &["y", "mean", "variance"],
            &[("training_mode", Attr::Int(1))],
        )
        .output("y")
        .output("mean");
    let (_folder, path) = file(&model);
    let mut model = Replaceable::open(&path).unwrap();
    let refused = model.set_norms_to_inference().unwrap_err().to_string();
    assert!(refused.contains("'mean'"), "{refused}");
}

/// Models that end in each kind of layer, of five classes.
fn classifiers() -> Vec<(&'static str, Model)> {
    let weight = |name: &str, dims: &[i64]| {
        let count = dims.iter().product::<i64>();
        let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
        f32_tensor(name, dims, &values)
    };
    let flat = || Model::new(17).input("x", FLOAT, &[2, 6]);
    let pixels = || Model::new(17).input("x", FLOAT, &[2, 6, 1, 1]);
    let end = |mut model: Model| {
        let info = value_info("y", FLOAT, &[Ok(2), Ok(5)]);
        model.graph = model.graph.message(12, &info);
        model
    };
    let turned = [("transB", Attr::Int(1))];
    vec![
        (
            "Gemm",
            end(flat()
                .constant(&weight("w", &[6, 5]))
                .constant(&weight("b", &[5]))
                .node("Gemm", &["x", "w", "b"], &["h"], &[])
                .node("Softmax", &["h"], &["y"], &[])),
        ),
        (
            "Gemm, turned",
            end(flat()
                .constant(&weight("w", &[5, 6]))
                .constant(&weight("b", &[5]))
                .node("Gemm", &["x", "w", "b"], &["y"], &turned)),
        ),
        (
            "MatMul",
            end(flat()
                .constant(&weight("w", &[6, 5]))
                .constant(&weight("b", &[5]))
                .node("MatMul", &["x", "w"], &["h"], &[])
                .node("Add", &["b", "h"], &["y"], &[])),
        ),
        (
            "MatMul of a transposed weight",
            end(flat()
                .constant(&weight("w", &[5, 6]))
                .node("Transpose", &["w"], &["t"], &[])
                .node("MatMul", &["x", "t"], &["y"], &[])),
        ),
        (
            "Conv",
            end(pixels()
                .constant(&weight("w", &[5, 6, 1, 1]))
                .constant(&weight("b", &[5]))
                .ints("shape", &[-1, 5])
                .node("Conv", &["x", "w", "b"], &["h"], &[])
                .node("Reshape", &["h", "shape"], &["y"], &[])),
        ),
    ]
}

#[test]
fn a_model_gets_a_last_layer_of_another_number_of_classes() {
    for (kind, model) in classifiers() {
        let (folder, path) = file(&model);
        let mut model = Replaceable::open(&path).unwrap();
        let mut asked = Vec::new();
        let mut draw = |of: &Initializer, inputs: usize| {
            asked.push((of.ty.elements(), inputs));
            [0.25f32.to_le_bytes(); 64].concat()[..of.ty.len_bytes()].to_vec()
        };
        let new = model.replace_classes(3, &mut draw).unwrap();
        assert_eq!(new.before, 5, "{kind}");
        assert_eq!(asked[0], (18, 6), "{kind}");
        assert!(asked.len() == 1 || asked[1] == (3, 6), "{kind}");
        let (path, found) = written(&mut model, folder.path());
        assert_eq!(found["w"], [0.25; 18], "{kind}");
        let graph = neap_onnx::open(&path, &Default::default()).unwrap();
        assert_eq!(output_shape(&graph), [2, 3], "{kind}");
        let declared = &neap_onnx::signature(&path).unwrap().outputs[0];
        let dims = [DeclaredDim::Fixed(2), DeclaredDim::Fixed(3)];
        assert_eq!(declared.dims.as_deref(), Some(&dims[..]), "{kind}");
    }
    let other = Model::new(17)
        .input("x", FLOAT, &[2, 6])
        .node("Tanh", &["x"], &["y"], &[])
        .output("y");
    let (_folder, path) = file(&other);
    let mut model = Replaceable::open(&path).unwrap();
    let refused = model
        .replace_classes(3, &mut |_, _| Vec::new())
        .unwrap_err();
    assert!(refused.to_string().contains("Tanh"), "{refused}");
}

/// A table of words that also tells them keeps its size; what tells them is new.
#[test]
fn a_shared_weight_is_left_to_its_other_reader() {
    let table: Vec<f32> = (0..15).map(|i| i as f32).collect();
    let model = Model::new(17)
        .input("ids", INT64, &[2])
        .constant(&f32_tensor("table", &[5, 3], &table))
        .node("Gather", &["table", "ids"], &["h"], &[])
        .node("Gemm", &["h", "table"], &["y"], &[("transB", Attr::Int(1))])
        .output("y");
    let (folder, path) = file(&model);
    let mut model = Replaceable::open(&path).unwrap();
    let mut draw = |of: &Initializer, _: usize| vec![0; of.ty.len_bytes()];
    let new = model.replace_classes(2, &mut draw).unwrap();
    assert_eq!(new.weights, ["table.classes"]);
    let (path, found) = written(&mut model, folder.path());
    assert_eq!(
        (found["table"].len(), found["table.classes"].len()),
        (15, 6)
    );
    let graph = neap_onnx::open(&path, &Default::default()).unwrap();
    assert_eq!(output_shape(&graph), [2, 2]);
}

#[test]
fn metadata_are_replaced_added_and_removed() {
    let model = Model::new(17)
        .metadata("a", "1")
        .metadata("b", "2")
        .metadata("c", "3")
        .input("x", FLOAT, &[2])
        .node("Tanh", &["x"], &["y"], &[])
        .output("y");
    let (folder, path) = file(&model);
    let mut model = Replaceable::open(&path).unwrap();
    let entries = [("b", "20"), ("c", ""), ("d", "4")];
    let entries = entries.map(|(k, v)| (k.to_string(), v.to_string()));
    model.set_metadata(&entries);
    let (path, _) = written(&mut model, folder.path());
    let found = neap_onnx::signature(&path).unwrap().about.metadata;
    let found: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    assert_eq!(found, [("a", "1"), ("b", "20"), ("d", "4")]);
}

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

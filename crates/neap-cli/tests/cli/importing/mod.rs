//! Checkpoints of Stable Diffusion, imported and run.

mod checkpoint;

use super::support::Bench;
use checkpoint::{As, Checkpoint, Tensor, safetensors};
use serde_json::json;
use std::fs;
use std::path::Path;

const FILES: [(&str, &str); 3] = [
    ("text_encoder", "model"),
    ("unet", "diffusion_pytorch_model"),
    ("vae", "diffusion_pytorch_model"),
];

/// With the zoo's `sd`, and a checkpoint that has its values.
fn bench() -> (Bench, Checkpoint) {
    let bench = Bench::new();
    bench.neap("zoo sd_tiny -o sd --seed 3").ok();
    let checkpoint = Checkpoint::of(&bench.path("sd"));
    (bench, checkpoint)
}

/// A folder of `diffusers` but for its weights.
fn write_settings(bench: &Bench, folder: &str) {
    let write = |name: &str, value: serde_json::Value| {
        let path = bench.path(&format!("{folder}/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value.to_string()).unwrap();
    };
    write(
        "model_index.json",
        json!({"_class_name": "StableDiffusionPipeline"}),
    );
    write(
        "unet/config.json",
        json!({
            "_class_name": "UNet2DConditionModel", "attention_head_dim": 4, "norm_num_groups": 8, "sample_size": 8,
            "in_channels": 4, "block_out_channels": [32, 64], "norm_eps": 1e-05, "class_embed_type": null,
        }),
    );
    write(
        "vae/config.json",
        json!({"norm_num_groups": 8, "block_out_channels": [16, 32, 32, 64], "scaling_factor": 0.18215}),
    );
    write(
        "text_encoder/config.json",
        json!({"hidden_size": 64, "num_attention_heads": 4, "hidden_act": "quick_gelu"}),
    );
    for part in ["tokenizer", "scheduler"] {
        fs::create_dir_all(bench.path(&format!("{folder}/{part}"))).unwrap();
        for entry in fs::read_dir(bench.path(&format!("sd/{part}"))).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            fs::copy(entry.path(), bench.path(&format!("{folder}/{part}/{name}"))).unwrap();
        }
    }
}

fn write_folder(bench: &Bench, folder: &str, checkpoint: &Checkpoint, kept: As) {
    write_settings(bench, folder);
    for ((part, tensors), (_, stem)) in checkpoint.folder.iter().zip(FILES) {
        let file = safetensors(tensors, kept);
        bench.write(&format!("{folder}/{part}/{stem}.safetensors"), &file);
    }
}

fn picture(bench: &Bench, folder: &str) -> Vec<u8> {
    let args = "-p house --size 64x64 --steps 2 --scheduler ddim --exact --quiet -o out.png";
    bench.neap(&format!("imagine {folder} {args}")).ok();
    fs::read(bench.path("out.png")).unwrap()
}

fn import(bench: &Bench, args: &str) -> String {
    let ran = bench.neap(&format!("import {args}")).ok();
    assert_eq!(bench.leftovers(), Vec::<String>::new());
    ran.stderr
}

fn weights(bench: &Bench, network: &str) -> Vec<u8> {
    fs::read(bench.path(network).join("model.onnx_data")).unwrap()
}

#[test]
fn both_layouts_are_the_network_of_their_values() {
    let (bench, checkpoint) = bench();
    let expected = picture(&bench, "sd");
    write_folder(&bench, "diffusers", &checkpoint, As::F32);
    let said = import(&bench, "diffusers -o folder");
    assert!(!said.contains("left out"), "{said}");
    fs::remove_dir_all(bench.path("diffusers")).unwrap();
    assert_eq!(picture(&bench, "folder"), expected);

    bench.write(
        "one.safetensors",
        &safetensors(&checkpoint.original, As::F32),
    );
    write_settings(&bench, "settings");
    import(&bench, "one.safetensors --settings settings -o one");
    fs::remove_file(bench.path("one.safetensors")).unwrap();
    assert_eq!(picture(&bench, "one"), expected);
    for network in ["text_encoder", "unet", "vae_decoder", "vae_encoder"] {
        let [a, b] =
            ["folder", "one"].map(|folder| weights(&bench, &format!("{folder}/{network}")));
        assert!(a == b, "{network}");
    }
}

#[test]
fn half_floats_stay_what_they_are() {
    let (bench, mut checkpoint) = bench();
    write_settings(&bench, "settings");
    for kept in [As::Bf16, As::F16] {
        checkpoint.each(|value| kept.rounded(value));
        bench.write("half.safetensors", &safetensors(&checkpoint.original, kept));
        bench.write(
            "wide.safetensors",
            &safetensors(&checkpoint.original, As::F32),
        );
        for name in ["half", "wide"] {
            import(
                &bench,
                &format!("{name}.safetensors --settings settings -o {name}"),
            );
        }
        let bytes = ["half", "wide"].map(|name| weights(&bench, &format!("{name}/unet")).len());
        assert!(bytes[0] * 5 < bytes[1] * 3, "{bytes:?}");
        assert_eq!(picture(&bench, "half"), picture(&bench, "wide"));
        for name in ["half", "wide"] {
            fs::remove_dir_all(bench.path(name)).unwrap();
        }
    }
}

#[test]
fn shards_and_names_of_older_files() {
    let (bench, mut checkpoint) = bench();
    write_folder(&bench, "whole", &checkpoint, As::F32);
    import(&bench, "whole -o expected");
    // As files were called and named some years ago.
    let old = |name: &str| {
        let pairs = [
            ("to_q", "query"),
            ("to_k", "key"),
            ("to_v", "value"),
            ("to_out.0", "proj_attn"),
        ];
        pairs.iter().fold(name.to_string(), |name, (new, old)| {
            name.replace(
                &format!("attentions.0.{new}."),
                &format!("attentions.0.{old}."),
            )
        })
    };
    let [(_, text), (_, unet), (_, vae)] = &mut checkpoint.folder;
    *vae = vae
        .iter()
        .map(|(name, tensor)| (old(name), tensor.clone()))
        .collect();
    assert!(vae.keys().any(|name| name.contains("query")));
    let ids = Tensor {
        shape: vec![1, 77],
        values: vec![0.0; 77],
    };
    text.insert("text_model.embeddings.position_ids".into(), ids);
    let unet = unet.clone();
    write_folder(&bench, "shards", &checkpoint, As::F32);
    let (first, second): (Vec<_>, Vec<_>) =
        unet.iter().partition(|(name, _)| *name < &"m".to_string());
    let mut map = serde_json::Map::new();
    for (number, tensors) in [(1, first), (2, second)] {
        let file = format!("diffusion_pytorch_model-0000{number}-of-00002.safetensors");
        map.extend(
            tensors
                .iter()
                .map(|(name, _)| ((*name).clone(), json!(file))),
        );
        bench.write(
            &format!("shards/unet/{file}"),
            &safetensors(tensors, As::F32),
        );
    }
    fs::remove_file(bench.path("shards/unet/diffusion_pytorch_model.safetensors")).unwrap();
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    let name = "shards/unet/diffusion_pytorch_model.safetensors.index.json";
    bench.write(name, index.as_bytes());
    let said = import(&bench, "shards -o folder");
    assert!(!said.contains("left out"), "{said}");
    for network in ["text_encoder", "unet", "vae_decoder", "vae_encoder"] {
        for file in ["model.onnx", "model.onnx_data"] {
            let [a, b] = ["expected", "folder"]
                .map(|folder| fs::read(bench.path(&format!("{folder}/{network}/{file}"))).unwrap());
            assert!(a == b, "{network}/{file}");
        }
    }
    let bad = index.replace(
        "diffusion_pytorch_model-00001",
        "../diffusion_pytorch_model-00001",
    );
    bench.write(name, bad.as_bytes());
    bench
        .neap("import shards -o other")
        .fails(2, &["index.json", "no index"]);
}

#[test]
fn what_has_no_place_is_counted() {
    let (bench, mut checkpoint) = bench();
    write_settings(&bench, "settings");
    let one = Tensor {
        shape: vec![2],
        values: vec![1.0, 2.0],
    };
    for name in [
        "model_ema.diffusion_modelinput_blocks00weight",
        "model_ema.decay",
        "alphas_cumprod",
        "model.diffusion_model.something.weight",
        "first_stage_model.decoder.conv_out.scale",
    ] {
        checkpoint.original.insert(name.into(), one.clone());
    }
    bench.write("m.safetensors", &safetensors(&checkpoint.original, As::F32));
    let said = import(&bench, "m.safetensors --settings settings -o out");
    assert!(said.contains("2 tensors of the moving average"), "{said}");
    assert!(said.contains("2 tensors have no place"), "{said}");
    assert!(
        said.contains("conv_out.scale") || said.contains("something.weight"),
        "{said}"
    );
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let (bench, checkpoint) = bench();
    write_settings(&bench, "settings");
    let fails = |file: &str, parts: &[&str]| {
        let args = format!("import {file} --settings settings -o out");
        bench.neap(&args).fails(2, parts);
        assert!(!bench.path("out").exists(), "{parts:?}");
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    };
    let changed = |change: &dyn Fn(&mut checkpoint::Tensors), parts: &[&str]| {
        let mut tensors = checkpoint.original.clone();
        change(&mut tensors);
        bench.write("m.safetensors", &safetensors(&tensors, As::F16));
        fails("m.safetensors", parts);
    };
    let key = "model.diffusion_model.middle_block.1.proj_out.bias";
    changed(
        &|t| drop(t.remove(key)),
        &["mid_block.attentions.0.proj_out.bias", "unet", "missing"],
    );
    changed(
        &|t| t.retain(|name, _| !name.starts_with("first_stage")),
        &["vae", "missing"],
    );
    let reshape = |name: &'static str, shape: &'static [usize]| {
        move |tensors: &mut checkpoint::Tensors| {
            let tensor = tensors.get_mut(name).unwrap();
            tensor.shape = shape.to_vec();
            tensor.values.resize(shape.iter().product(), 0.0);
        }
    };
    changed(&reshape(key, &[63]), &["proj_out.bias", "[63]", "[64]"]);
    let first = "model.diffusion_model.input_blocks.0.0.weight";
    changed(&reshape(first, &[32, 9, 3, 3]), &["inpainting"]);
    let add = |name: &'static str| {
        move |tensors: &mut checkpoint::Tensors| {
            let tensor = tensors.values().next().unwrap().clone();
            tensors.insert(name.into(), tensor);
        }
    };
    changed(&add("lora_unet_mid_block.lora_down.weight"), &["LoRA"]);
    changed(
        &add("control_model.input_blocks.0.0.weight"),
        &["ControlNet"],
    );
    changed(&add("conditioner.embedders.0.weight"), &["SDXL"]);
    changed(
        &add("model.diffusion_model.label_emb.0.0.weight"),
        &["more inputs"],
    );
    changed(&|t| t.clear(), &["no UNet of Stable Diffusion"]);

    let whole = safetensors(&checkpoint.original, As::F32);
    bench.write("m.safetensors", &whole[..whole.len() - 100]);
    fails("m.safetensors", &["cut short", "100 bytes"]);
    bench.write("m.safetensors", &whole[..200]);
    fails("m.safetensors", &["no file of safetensors"]);
    bench.write("m.safetensors", b"");
    fails("m.safetensors", &["no file of safetensors"]);
    bench.write("m.ckpt", b"PK\x03\x04 and more of it");
    fails("m.ckpt", &["pickle", "safetensors"]);
    fails("none.safetensors", &["none.safetensors"]);

    bench.write("m.safetensors", &whole);
    bench
        .neap("import m.safetensors -o out")
        .fails(2, &["groups of 32", "--settings"]);
    bench
        .neap("import m.safetensors --settings none -o out")
        .fails(2, &["none is no folder"]);
    bench
        .neap("import m.safetensors --settings settings -o sd")
        .fails(2, &["sd"]);
    bench.write(
        "settings/unet/config.json",
        b"{\"time_cond_proj_dim\": 256}",
    );
    fails("m.safetensors", &["time_cond_proj_dim", "256"]);
    write_settings(&bench, "settings");
    bench.write("settings/unet/config.json", b"{\"norm_num_groups\": 5}");
    fails("m.safetensors", &["groups of 5"]);
}

#[test]
fn folders_of_other_models_are_refused() {
    let (bench, checkpoint) = bench();
    write_folder(&bench, "d", &checkpoint, As::F32);
    let fails = |parts: &[&str]| {
        bench.neap("import d -o out").fails(2, parts);
        assert!(!bench.path("out").exists());
    };
    let unet = "d/unet/diffusion_pytorch_model";
    let path = |ending: &str| bench.path(&format!("{unet}{ending}"));
    fs::rename(path(".safetensors"), path(".bin")).unwrap();
    fails(&["no diffusion_pytorch_model.safetensors", "pickle"]);
    // Another name for the same precision is taken where there is but one.
    fs::rename(path(".bin"), path(".fp16.safetensors")).unwrap();
    import(&bench, "d -o taken");
    let index = json!({"_class_name": "StableDiffusionInpaintPipeline"}).to_string();
    bench.write("d/model_index.json", index.as_bytes());
    fails(&["StableDiffusionInpaintPipeline"]);
    bench.write("d/model_index.json", b"{}");
    fs::remove_file(bench.path("d/tokenizer/merges.txt")).unwrap();
    fails(&["tokenizer/vocab.json and merges.txt"]);
    fs::remove_dir_all(bench.path("d/unet")).unwrap();
    fails(&["no folder of diffusers"]);
    assert!(Path::new(&bench.path("taken/unet/model.onnx")).is_file());
}

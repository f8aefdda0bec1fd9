//! Each kind of data, as a training reads it.

use crate::support::*;
use neap_train::{Batch, DataOptions, Recipe, SampleType, open_data};
use std::fs;
use std::path::Path;

fn idx(path: &Path, kind: u8, shape: &[u32], data: &[u8]) {
    let mut bytes = vec![0, 0, kind, shape.len() as u8];
    shape.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

fn mnist(folder: &Path, which: &str, count: u32, class: impl Fn(u32) -> u8) {
    let pixels: Vec<u8> = (0..count * 784).map(|i| (i / 784) as u8).collect();
    idx(
        &folder.join(format!("{which}-images-idx3-ubyte")),
        8,
        &[count, 28, 28],
        &pixels,
    );
    let classes: Vec<u8> = (0..count).map(class).collect();
    idx(
        &folder.join(format!("{which}-labels-idx1-ubyte")),
        8,
        &[count],
        &classes,
    );
}

fn sample(folder: &Path) -> SampleType {
    Recipe::new(&model(folder), &model_options(4), false)
        .unwrap()
        .sample
}

/// The class and the first value of each of some samples.
fn firsts(samples: &dyn neap_train::Samples, ty: &SampleType) -> Vec<(i64, f32)> {
    let mut batch = Batch::new(ty, samples.count());
    let all: Vec<u32> = (0..samples.count() as u32).collect();
    batch.fill(samples, &all, None).unwrap();
    let values = batch.input.as_f32().unwrap().chunks(ty.input.elements());
    let classes = batch.target.to_i64_vec().unwrap();
    classes.into_iter().zip(values.map(|v| v[0])).collect()
}

#[test]
fn idx_files_with_and_without_a_test_set() {
    let folder = tempfile::tempdir().unwrap();
    let ty = sample(folder.path());
    mnist(folder.path(), "train", 20, |i| (i % 10) as u8);
    let of = |options: &DataOptions| open_data(folder.path(), &ty, options).unwrap();
    let split = of(&DataOptions {
        validation_share: 0.25,
        ..data_options()
    });
    let mut all = firsts(&*split.train, &ty);
    assert_eq!(all.len(), 15);
    all.extend(firsts(&*split.validation.unwrap(), &ty));
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    let expected = (0..20).map(|i| (i % 10, i as f32 * (1.0 / 255.0)));
    assert_eq!(all, expected.collect::<Vec<_>>());

    mnist(folder.path(), "t10k", 5, |_| 7);
    let both = of(&DataOptions {
        limit: Some(3),
        ..data_options()
    });
    assert_eq!(both.train.count(), 3);
    assert!(
        firsts(&*both.validation.unwrap(), &ty)
            .iter()
            .all(|v| v.0 == 7)
    );

    mnist(folder.path(), "train", 20, |i| if i == 13 { 10 } else { 0 });
    // Found before anything is trained.
    let refused = open_data(folder.path(), &ty, &data_options());
    let refused = refused.map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.contains("sample 13 has class 10") && refused.contains("labels-idx1"),
        "{refused}"
    );
}

#[test]
fn folders_of_pictures_of_any_size() {
    let folder = tempfile::tempdir().unwrap();
    let ty = sample(folder.path());
    let data = folder.path().join("data");
    for (set, class, name, size, grey) in [
        ("train", "cat", "a.png", (28, 28), 51u8),
        ("train", "cat", "b.jpg", (64, 40), 102),
        ("train", "dog", "c.JPG", (30, 90), 204),
        ("val", "dog", "d.png", (10, 10), 255),
    ] {
        let folder = data.join(set).join(class);
        fs::create_dir_all(&folder).unwrap();
        let encode = match name.ends_with(".png") {
            true => neap_testing::png(size.0, size.1, |_, _| [grey; 3]),
            false => neap_testing::jpeg(size.0, size.1, |_, _| [grey; 3]),
        };
        fs::write(folder.join(name), encode).unwrap();
        fs::write(folder.join("notes.txt"), "").unwrap();
    }
    let opened = open_data(&data, &ty, &data_options()).unwrap();
    assert_eq!(opened.classes, ["cat", "dog"]);
    // Of the largest, not of the largest that could be.
    let largest = opened.largest.clone().unwrap();
    assert_eq!((largest.width, largest.height), (64, 40));
    assert!(opened.decoding_bytes() < 1 << 20, "{largest:?}");
    assert_eq!(opened.remarks.len(), 3, "{:?}", opened.remarks);
    assert!(opened.remarks[0].contains("2 .txt"), "{:?}", opened.remarks);
    assert!(
        opened.remarks[2].contains("--classes 2"),
        "{:?}",
        opened.remarks
    );
    let near = |found: Vec<(i64, f32)>, expected: &[(i64, f32)]| {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!(a.0 == b.0 && (a.1 - b.1).abs() < 0.01, "{a:?} {b:?}");
        }
    };
    near(firsts(&*opened.train, &ty), &[(0, 0.2), (0, 0.4), (1, 0.8)]);
    // The class has the number that it has in training, though it is the only one here.
    near(firsts(&*opened.validation.unwrap(), &ty), &[(1, 1.0)]);

    fs::write(data.join("train/cat/a.png"), "no picture").unwrap();
    let mut batch = Batch::new(&ty, 1);
    let refused = batch
        .fill(&*opened.train, &[0], None)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("a.png"), "{refused}");
    let reopened = |ty: &SampleType| {
        let opened = open_data(&data, ty, &data_options());
        opened.map(|_| ()).unwrap_err().to_string()
    };
    assert!(reopened(&ty).contains("a.png"), "{}", reopened(&ty));
    fs::remove_file(data.join("train/cat/a.png")).unwrap();
    let few = SampleType {
        classes: Some(1),
        ..ty.clone()
    };
    assert!(reopened(&few).contains("--classes 2"), "{}", reopened(&few));
    fs::create_dir(data.join("val/fish")).unwrap();
    assert!(reopened(&ty).contains("'fish'"), "{}", reopened(&ty));
}

#[test]
fn a_class_without_pictures_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let ty = sample(folder.path());
    let data = folder.path().join("data");
    for class in ["a", "b"] {
        fs::create_dir_all(data.join(class)).unwrap();
    }
    fs::write(data.join("b/x.png"), neap_testing::png(8, 8, |_, _| [9; 3])).unwrap();
    let refused = || {
        let opened = open_data(&data, &ty, &data_options());
        opened.map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused().contains("'a' has no pictures"), "{}", refused());
    for name in ["1.gif", "2.gif", "3.TIFF"] {
        fs::write(data.join("a").join(name), "").unwrap();
    }
    assert!(refused().contains("2 .gif"), "{}", refused());
}

#[test]
fn pictures_that_are_cut_short_are_found_before_the_first_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let ty = sample(folder.path());
    let data = folder.path().join("data/a");
    fs::create_dir_all(&data).unwrap();
    let noise = |x: u16, y: u16| [(x * 31 + y * 17) as u8, (x * y) as u8, (x * 7) as u8];
    for (name, whole) in [
        ("x.jpg", neap_testing::jpeg(90, 60, noise)),
        ("x.png", neap_testing::png(90, 60, noise)),
    ] {
        for end in [0, 100, whole.len() / 2, whole.len() - 4] {
            fs::write(data.join(name), &whole[..end]).unwrap();
            let opened = open_data(data.parent().unwrap(), &ty, &data_options());
            let refused = opened.map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains(name), "{name}, {end}: {refused}");
        }
        fs::write(data.join(name), &whole).unwrap();
        assert!(open_data(data.parent().unwrap(), &ty, &data_options()).is_ok());
    }
}

#[test]
fn tokens_are_followed_by_their_successors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.bin");
    let tokens: Vec<u8> = (0..20u16).flat_map(u16::to_le_bytes).collect();
    fs::write(&path, tokens).unwrap();
    let ty = SampleType {
        input: neap_ir::TensorType::new(neap_ir::DType::I64, &[4]),
        target: neap_ir::TensorType::new(neap_ir::DType::I64, &[4]),
        classes: Some(20),
    };
    assert!(neap_train::are_tokens(&path));
    let options = DataOptions {
        validation_share: 0.3,
        ..data_options()
    };
    let opened = open_data(&path, &ty, &options).unwrap();
    let validation = opened.validation.unwrap();
    assert_eq!((opened.train.count(), validation.count()), (3, 1));
    let of = |samples: &dyn neap_train::Samples, index: u32| {
        let mut batch = Batch::new(&ty, 1);
        batch.fill(samples, &[index], None).unwrap();
        (
            batch.input.to_i64_vec().unwrap(),
            batch.target.to_i64_vec().unwrap(),
        )
    };
    assert_eq!(
        of(&*opened.train, 2),
        (vec![8, 9, 10, 11], vec![9, 10, 11, 12])
    );
    assert_eq!(
        of(&*validation, 0),
        (vec![14, 15, 16, 17], vec![15, 16, 17, 18])
    );
    let small = SampleType {
        classes: Some(19),
        ..ty.clone()
    };
    let opened = open_data(
        &path,
        &small,
        &DataOptions {
            validation_share: 0.0,
            ..options
        },
    )
    .unwrap();
    let mut batch = Batch::new(&small, 1);
    let refused = batch.fill(&*opened.train, &[3], None);
    assert!(refused.is_ok());
    assert!(opened.validation.is_none());
}

#[test]
fn what_is_no_data_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ty = sample(folder.path());
    let refused = |path: &Path| {
        let opened = open_data(path, &ty, &data_options());
        opened.map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(&folder.path().join("nowhere")).contains("there is no"));
    assert!(refused(folder.path()).contains("train-images-idx3-ubyte"));
    let other = folder.path().join("data.csv");
    fs::write(&other, "").unwrap();
    assert!(refused(&other).contains(".npz"));
    idx(
        &folder.path().join("train-images-idx3-ubyte"),
        8,
        &[2, 28, 28],
        &[0; 1568],
    );
    idx(
        &folder.path().join("train-labels-idx1-ubyte"),
        8,
        &[3],
        &[0; 3],
    );
    assert!(refused(folder.path()).contains("3"));
}

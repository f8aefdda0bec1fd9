//! Folders on the drive, and published numbers of parameters, added up by hand.

use super::*;

fn write(name: &str, path: &Path, half: bool) -> Result<u64, ZooError> {
    let options = FolderOptions { half, seed: 0 };
    let mut last = (0, 0);
    let bytes = write_folder(name, path, &options, &mut |done, total| {
        last = (done, total)
    })?;
    assert_eq!(last, (bytes, bytes));
    Ok(bytes)
}

#[test]
fn a_folder_is_whole_and_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sd");
    let bytes = write("sd_tiny", &path, false).unwrap();
    assert!((1 << 20..8 << 20).contains(&bytes), "{bytes}");
    assert!(path.join("unet/model.onnx").is_file());
    assert!(write("sd_tiny", &path, false).is_err());
    assert!(write("sd", &dir.path().join("other"), false).is_err());
    let halved = write("sd_tiny", &dir.path().join("half"), true).unwrap();
    assert!((bytes / 2..bytes / 2 + 1024).contains(&halved), "{halved}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    let second = dir.path().join("xl");
    write("sdxl_tiny", &second, false).unwrap();
    assert!(second.join("text_encoder_2/model.onnx").is_file());
    assert!(second.join("tokenizer_2/vocab.json").is_file());
}

fn linear(from: u64, to: u64) -> u64 {
    (from + 1) * to
}

fn conv(from: u64, to: u64) -> u64 {
    linear(9 * from, to)
}

fn norm(width: u64) -> u64 {
    2 * width
}

/// A residual block, with a layer that changes the number of channels where it does.
fn block(from: u64, to: u64) -> u64 {
    let beside = if from == to { 0 } else { linear(from, to) };
    norm(from) + conv(from, to) + norm(to) + conv(to, to) + beside
}

fn text(width: u64, layers: u64) -> u64 {
    let attention = 4 * linear(width, width);
    let wide = linear(width, 4 * width) + linear(4 * width, width);
    (49_408 + 77) * width + layers * (attention + wide + 2 * norm(width)) + norm(width)
}

/// The UNet's blocks of one level, which know the step.
fn timed(blocks: &[u64], to: u64) -> u64 {
    let each = blocks
        .iter()
        .map(|&from| block(from, to) + linear(1280, to));
    each.sum()
}

/// So many layers that look at a text, and what is around them.
fn looking(width: u64, context: u64, layers: u64) -> u64 {
    let itself = 3 * width * width + linear(width, width);
    let at_text = width * width + 2 * context * width + linear(width, width);
    let gated = linear(width, 8 * width) + linear(4 * width, width);
    let layer = 3 * norm(width) + itself + at_text + gated;
    norm(width) + 2 * linear(width, width) + layers * layer
}

/// Decoder and encoder.
fn vae() -> [u64; 2] {
    let middle = 2 * block(512, 512) + norm(512) + 4 * linear(512, 512);
    let levels = 3 * block(512, 512)
        + 3 * block(512, 512)
        + (block(512, 256) + 2 * block(256, 256))
        + (block(256, 128) + 2 * block(128, 128));
    let doubled = 2 * conv(512, 512) + conv(256, 256);
    let ends = linear(4, 4) + conv(4, 512) + norm(128) + conv(128, 3);
    let decoder = middle + levels + doubled + ends;
    let levels = 2 * block(128, 128)
        + (block(128, 256) + block(256, 256))
        + (block(256, 512) + block(512, 512))
        + 2 * block(512, 512);
    let halved = conv(128, 128) + conv(256, 256) + conv(512, 512);
    let ends = conv(3, 128) + norm(512) + conv(512, 8) + linear(8, 8);
    [decoder, middle + levels + halved + ends]
}

fn built(model: &Model) -> Vec<u64> {
    let (vocabulary, _) = tokenizer();
    let graphs = networks(model, vocabulary.len(), false);
    graphs.iter().map(Graph::parameter_count).collect()
}

/// What a network with the sizes that are published for Stable Diffusion 1.5 has, layer by layer. The sums are those of the published files.
#[test]
fn stable_diffusion_has_the_published_parameters() {
    let time = linear(320, 1280) + linear(1280, 1280);
    let down = timed(&[320, 320], 320)
        + timed(&[320, 640], 640)
        + timed(&[640, 1280], 1280)
        + timed(&[1280, 1280], 1280)
        + conv(320, 320)
        + conv(640, 640)
        + conv(1280, 1280);
    let looking = |width| looking(width, 768, 1);
    let middle = timed(&[1280, 1280], 1280) + looking(1280);
    // Each block sees the one before and what the way down left.
    let up = timed(&[2560, 2560, 2560], 1280)
        + timed(&[2560, 2560, 1920], 1280)
        + timed(&[1920, 1280, 960], 640)
        + timed(&[960, 640, 640], 320)
        + 2 * conv(1280, 1280)
        + conv(640, 640);
    let attentions = 5 * (looking(320) + looking(640) + looking(1280));
    let ends = conv(4, 320) + norm(320) + conv(320, 4);
    let unet = time + down + middle + up + attentions + ends;
    let [decoder, encoder] = vae();
    let expected = [text(768, 12), unet, decoder, encoder];
    assert_eq!(expected, [123_060_480, 859_520_964, 49_490_199, 34_163_664]);
    assert_eq!(built(&Model::StableDiffusion(diffusion::SD_15)), expected);
}

/// The same for SDXL 1.0.
#[test]
fn sdxl_has_the_published_parameters() {
    let second = text(1280, 32) + 1280 * 1280;
    let time = linear(320, 1280) + linear(1280, 1280);
    let sizes = linear(1280 + 6 * 256, 1280) + linear(1280, 1280);
    let down = timed(&[320, 320], 320)
        + timed(&[320, 640], 640)
        + timed(&[640, 1280], 1280)
        + conv(320, 320)
        + conv(640, 640);
    let up = timed(&[2560, 2560, 1920], 1280)
        + timed(&[1920, 1280, 960], 640)
        + timed(&[960, 640, 640], 320)
        + conv(1280, 1280)
        + conv(640, 640);
    // Two on the way down, three on the way up; one in the middle.
    let attentions = 5 * looking(640, 2048, 2) + 6 * looking(1280, 2048, 10);
    let middle = timed(&[1280, 1280], 1280);
    let ends = conv(4, 320) + norm(320) + conv(320, 4);
    let unet = time + sizes + down + middle + up + attentions + ends;
    let [decoder, encoder] = vae();
    let expected = [text(768, 12), second, unet, decoder, encoder];
    let published = [
        123_060_480,
        694_659_840,
        2_567_463_684,
        49_490_199,
        34_163_664,
    ];
    assert_eq!(expected, published);
    assert_eq!(built(&Model::StableDiffusion(diffusion::SDXL)), expected);
}

/// The same for PixArt-α's transformer: 611 million are published.
#[test]
fn pixart_has_the_published_parameters() {
    let width = 1152;
    let attention = 4 * linear(width, width);
    let wide = linear(width, 4 * width) + linear(4 * width, width);
    let layer = 2 * attention + wide + 6 * width;
    let time = linear(256, width) + linear(width, width) + linear(width, 6 * width);
    let text = linear(4096, width) + linear(width, width);
    let ends = linear(2 * 2 * 4, width) + 2 * width + linear(width, 2 * 2 * 8);
    let transformer = 28 * layer + time + text + ends;
    assert_eq!(transformer, 610_856_096);
    let expected = [transformer, vae()[0]];
    assert_eq!(built(&Model::PixArt(diffusion::PIXART)), expected);
}

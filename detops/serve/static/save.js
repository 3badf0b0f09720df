// Saves the result as a file: JSON of `detops detect --json`, a COCO dataset, or an image.

// shown: {model, detections} per figure; image: {name, width, height}.
export function asJson(image, shown) {
  return shown.map(({ model, detections }) => ({
    image: image.name,
    model,
    width: image.width,
    height: image.height,
    detections: detections.map(({ label, ...rest }) => rest),
  }));
}

// Returns the detections of one model as a dataset for annotation tools, with scores.
export function asCoco(image, { classes, detections }) {
  const annotations = detections.map((detection, index) => {
    const [x1, y1, x2, y2] = detection.box;
    const annotation = {
      id: index + 1,
      image_id: 1,
      category_id: detection.label,
      bbox: [x1, y1, x2 - x1, y2 - y1],
      area: (x2 - x1) * (y2 - y1),
      iscrowd: 0,
      score: detection.score,
    };
    if (detection.mask) annotation.segmentation = detection.mask;
    if (detection.keypoints) {
      annotation.keypoints = detection.keypoints;
      annotation.num_keypoints = detection.keypoints.length / 3;
    }
    return annotation;
  });
  return {
    images: [{ id: 1, file_name: image.name, width: image.width, height: image.height }],
    categories: classes.map((name, index) => ({ id: index + 1, name })),
    annotations,
  };
}

export function saveText(name, value) {
  save(name, new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
}

export async function saveImage(name, canvas) {
  save(name, await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
}

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

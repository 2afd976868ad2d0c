"""Small made folders of the sources: their files, headers and oddities as the owners publish them."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from PIL import Image

from edelweiss.lab.cli import main

# The first lines of the files. NIH's has two names with a comma in them; that of 2017 ends with another one.
CHEXPERT = (
    "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,"
    "Lung Lesion,Edema,Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,"
    "Fracture,Support Devices"
)
MIMIC_METADATA = (
    "dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows,Columns,StudyDate,"
    "StudyTime,ProcedureCodeSequence_CodeMeaning,ViewCodeSequence_CodeMeaning,"
    "PatientOrientationCodeSequence_CodeMeaning"
)
MIMIC_CHEXPERT = (
    "subject_id,study_id,Atelectasis,Cardiomegaly,Consolidation,Edema,Enlarged Cardiomediastinum,Fracture,"
    "Lung Lesion,Lung Opacity,No Finding,Pleural Effusion,Pleural Other,Pneumonia,Pneumothorax,Support Devices"
)
MIMIC_SPLIT = "dicom_id,study_id,subject_id,split"
NIH = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
)
PADCHEST = (
    ",ImageID,ImageDir,StudyDate_DICOM,StudyID,PatientID,PatientBirth,PatientSex_DICOM,ViewPosition_DICOM,"
    "Projection,MethodProjection,Pediatric,Modality_DICOM,Manufacturer_DICOM,PhotometricInterpretation_DICOM,"
    "PixelRepresentation_DICOM,PixelAspectRatio_DICOM,SpatialResolution_DICOM,BitsStored_DICOM,"
    "WindowCenter_DICOM,WindowWidth_DICOM,Rows_DICOM,Columns_DICOM,XRayTubeCurrent_DICOM,Exposure_DICOM,"
    "ExposureInuAs_DICOM,ExposureTime,RelativeXRayExposure_DICOM,ReportID,Report,MethodLabel,Labels,"
    "Localizations,LabelsLocalizationsBySentence,labelCUIS,LocalizationsCUIS"
)
VINDR = (
    "image_id,rad_id,Aortic enlargement,Atelectasis,Calcification,Cardiomegaly,Clavicle fracture,Consolidation,"
    "Edema,Emphysema,Enlarged PA,ILD,Infiltration,Lung Opacity,Lung cavity,Lung cyst,Mediastinal shift,"
    "Nodule/Mass,Pleural effusion,Pleural thickening,Pneumothorax,Pulmonary fibrosis,Rib fracture,Other lesion,"
    "COPD,Lung tumor,Pneumonia,Tuberculosis,Other diseases,No finding"
)
VINBIGDATA = "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max"

Row = dict[str, str]


def write(file: Path, header: str, rows: Iterable[Row]) -> None:
    """Write a table with what the header names; what a row does not have is empty."""
    text = io.StringIO()
    table = csv.DictWriter(text, header.split(","), restval="", extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    put(file, text.getvalue().encode())


def put(file: Path, content: bytes) -> None:
    """Write a file, packed where its name ends so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def picture(file: Path) -> None:
    """Write a tiny image; a DICOM file, which no importer opens, is any bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix in (".png", ".jpg"):
        Image.new("L", (3, 2), 7).save(file)
    else:
        file.write_bytes(b"DICM")


def chexpert(folder: Path) -> Path:
    """Four images of three patients for training, a lateral one among them, and one to validate on."""
    name = "CheXpert-v1.0-small/{}/patient{}/study1/view{}.jpg"
    rows = [
        {
            "Path": name.format("train", "00001", "1_frontal"),
            "Frontal/Lateral": "Frontal",
            "AP/PA": "AP",
            "Cardiomegaly": "1.0",
            "Edema": "0.0",
            "Consolidation": "-1.0",
        },
        {"Path": name.format("train", "00001", "2_lateral"), "Frontal/Lateral": "Lateral", "Cardiomegaly": "1.0"},
        {"Path": name.format("train", "00002", "1_frontal"), "Frontal/Lateral": "Frontal", "AP/PA": "PA", "Edema": "1"},
        {
            "Path": name.format("train", "64540", "1_frontal"),
            "Frontal/Lateral": "Frontal",
            "AP/PA": "LL",
            "Atelectasis": "-1",
        },
    ]
    valid = [
        {
            "Path": name.format("valid", "64541", "1_frontal"),
            "Frontal/Lateral": "Frontal",
            "AP/PA": "AP",
            **dict.fromkeys(CHEXPERT.split(",")[5:], "0.0"),
        }
    ]
    write(folder / "train.csv", CHEXPERT, rows)
    write(folder / "valid.csv", CHEXPERT, valid)
    for row in rows + valid:
        picture(folder / row["Path"].partition("/")[2])
    return folder


def mimic(folder: Path, ending: str = ".jpg", packed: str = ".gz") -> Path:
    """Images of two patients and three studies, the last of which has no labels."""
    shots = [
        ("a1", "10000032", "50414267", "PA", "train"),
        ("a2", "10000032", "50414267", "LATERAL", "train"),
        ("b1", "10000032", "53189527", "AP", "validate"),
        ("c1", "19999987", "58621812", "", "train"),
        ("c2", "19999987", "58621812", "LL", "train"),
        ("d1", "19999987", "50000001", "AP LLD", "train"),
    ]
    named = ("dicom_id", "subject_id", "study_id", "ViewPosition", "split")
    rows = [dict(zip(named, shot, strict=True)) for shot in shots]
    labels = [
        {"subject_id": "10000032", "study_id": "50414267", "No Finding": "1.0"},
        {"subject_id": "10000032", "study_id": "53189527", "Edema": "-1.0", "Pleural Effusion": "1.0"},
        {"subject_id": "19999987", "study_id": "58621812", "Atelectasis": "0.0"},
    ]
    table = f"mimic-cxr-2.0.0-{{}}.csv{packed}"
    write(folder / table.format("metadata"), MIMIC_METADATA, rows)
    write(folder / table.format("split"), MIMIC_SPLIT, rows)
    write(folder / table.format("chexpert"), MIMIC_CHEXPERT, labels)
    for image, subject, study, _, _ in shots:
        picture(folder / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}" / f"{image}{ending}")
    return folder


def nih(folder: Path, old: bool = False, place: str = "images_{:03}/images") -> Path:
    """Six images in three folders; the last two are for testing."""
    found = ["Cardiomegaly", "Cardiomegaly|Effusion", "No Finding", "Edema|Pleural_Thickening", "Effusion", "Mass"]
    rows = [
        {
            "Image Index": f"{i // 2 + 1:08}_{i % 2:03}.png",
            "Finding Labels": text,
            "Patient ID": str(i // 2 + 1),
            "View Position": "PA" if i % 2 else "AP",
            "Patient Age": "058Y" if old else "58",
            "OriginalImage[Width": "2682",
            "Height]": "2749",
        }
        for i, text in enumerate(found)
    ]
    name = "Data_Entry_2017.csv" if old else "Data_Entry_2017_v2020.csv"
    write(folder / name, f"{NIH}," if old else NIH, rows)
    names = [row["Image Index"] for row in rows]
    put(folder / "train_val_list.txt", "\n".join(names[:4]).encode())
    put(folder / "test_list.txt", "\r\n".join(names[4:]).encode())
    for i, image in enumerate(names):
        picture(folder / place.format(i // 2 + 1) / image)
    return folder


def padchest(folder: Path, lists: Sequence[str] = (), packed: str = "", flat: bool = False) -> Path:
    """One image for each list of labels, each of a patient of its own but the first two."""
    lists = lists or ["['cardiomegaly', ' pulmonary edema']", "['normal']", "['unchanged', 'pleural effusion']", "nan"]
    views = ["PA", "L", "AP_horizontal", "AP", "COSTAL", "UNK"]
    rows = [
        {
            "": str(i),
            "ImageID": f"{i}_k6ga29.png",
            "ImageDir": str(50 * (i % 2)),
            "PatientID": str(max(i, 1)),
            "Projection": views[i % 6],
            "Report": ' cambi "cronic" sever .\n sign fibrosis, cifosis .',
            "MethodLabel": "RNN_model",
            "Labels": text,
        }
        for i, text in enumerate(lists)
    ]
    write(folder / f"PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv{packed}", PADCHEST, rows)
    for row in rows:
        picture(folder / ("" if flat else row["ImageDir"]) / row["ImageID"])
    return folder


def vindr(folder: Path, ending: str = ".dicom", kaggle: bool = False) -> Path:
    """Four images whose three readers see an enlarged heart 0, 1, 2 and 3 times, and one to test on."""
    read = [(f"{image:032x}", f"R{reader + 8}", int(reader < image)) for image in range(4) for reader in range(3)]
    blank = dict.fromkeys(VINDR.split(",")[2:], "0")
    rows = [{**blank, "image_id": image, "rad_id": reader, "Cardiomegaly": str(seen)} for image, reader, seen in read]
    names = {0: ["No finding"], 1: ["Aortic enlargement", "Cardiomegaly", "Cardiomegaly"]}  # a row for each box
    boxes = [
        {"image_id": image, "rad_id": reader, "class_name": name}
        for image, reader, seen in read
        for name in names[seen]
    ]
    if kaggle:
        write(folder / "train.csv", VINBIGDATA, boxes)
    else:
        write(folder / "annotations/image_labels_train.csv", VINDR, rows)
        write(
            folder / "annotations/image_labels_test.csv",
            VINDR.replace("rad_id,", ""),
            [{**blank, "image_id": "f" * 32, "Pleural effusion": "1"}],
        )
        picture(folder / f"test/{'f' * 32}{ending}")
    for image in sorted({image for image, _, _ in read}):
        picture(folder / f"train/{image}{ending}")
    return folder


MAKE = {"chexpert": chexpert, "mimic": mimic, "nih": nih, "padchest": padchest, "vindr": vindr}


def imported(name: str, folder: Path, *options: str) -> pd.DataFrame:
    """Import a source by the command, and return what is in labels.csv, by path."""
    target = folder.parent / f"site-{len(list(folder.parent.iterdir()))}"
    assert main(["import", name, str(folder), str(target), *options]) == 0
    frame = pd.read_csv(target / "labels.csv", dtype=str, keep_default_na=False)
    columns = ["path", "patient", "view", "Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion"]
    assert list(frame.columns) == columns + ["No Finding"] * (name in ("chexpert", "mimic"))
    assert all((target / path).is_file() for path in frame["path"])
    return frame.set_index("path")

"""A synthetic FHIR R4 bulk export, with what real ones have: forms of references, versions, statuses, zones, parts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SNOMED, RXNORM, LOINC = "http://snomed.info/sct", "http://www.nlm.nih.gov/research/umls/rxnorm", "http://loinc.org"
ACT, UCUM = "http://terminology.hl7.org/CodeSystem/v3-ActCode", "http://unitsofmeasure.org"
CODES = {  # of concepts of OMOP
    201826: (SNOMED, "44054006"),
    443731: (SNOMED, "422034002"),
    201254: (SNOMED, "46635009"),
    201820: (SNOMED, "73211009"),
    321588: (SNOMED, "56265001"),
    316139: (SNOMED, "84114007"),
    444094: (SNOMED, "48447003"),
    316866: (SNOMED, "38341003"),
    1503297: (RXNORM, "6809"),
    40164929: (RXNORM, "860975"),
    3004410: (LOINC, "2345-7"),
    3028437: (LOINC, "2089-1"),
    4336464: (SNOMED, "40701008"),
    9201: (ACT, "IMP"),
    9203: (ACT, "EMER"),
}
UNITS = {8753: "mmol/L", 8840: "mg/dL", 8554: "%"}
Resource = dict[str, Any]


class Writer:
    """Resources of persons that are given as rows of OMOP's tables.

    ``vague`` adds what OMOP has no place for: dates without a day or month, none, zones, reasons for no value.
    """

    def __init__(self, rows: dict[str, list[tuple[Any, ...]]], seed: int, *, vague: bool) -> None:
        self.rng, self.vague = np.random.default_rng(seed), vague
        self.all: dict[str, list[Resource]] = {}
        for name, convert in (
            ("person", self._patient),
            ("visit_occurrence", self._encounter),
            ("condition_occurrence", self._condition),
            ("measurement", self._observation),
            ("drug_exposure", self._request),
            ("procedure_occurrence", self._procedure),
        ):
            for row in rows[name]:
                resource = convert(*row)
                self.all.setdefault(resource["resourceType"], []).append(resource)
        for name in list(self.all):
            self.all[name] += [*self._wrong(name)]

    def may(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def choice(self, *of: Any) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def made(self, kind: str, own: object, **elements: Any) -> Resource:
        updated = f"2024-0{self.choice(1, 2, 3)}-11T08:00:00.{self.choice('1', '123')}+01:00"
        meta = {"versionId": "2", "lastUpdated": updated, "profile": ["http://example.org/p"]}
        kept = {key: value for key, value in elements.items() if value is not None}
        return {"resourceType": kind, "id": str(own), "meta": meta, **kept, "text": {"status": "generated"}}

    def reference(self, kind: str, name: object) -> Resource:
        return {
            "reference": self.choice(
                f"{kind}/{name}",
                f"{kind}/{name}/_history/3",
                f"https://ehr.example.org/fhir/{kind}/{name}",
                f"urn:uuid:{name}",
            ),
            "display": "somebody",
        }

    def subject(self, person: int) -> Resource:
        return self.reference("Patient", person)

    def concept(self, concept: int) -> Resource:
        """Write a CodeableConcept with codings of other systems, and sometimes one twice."""
        system, code = CODES[concept]
        coding = [{"system": system, "code": code, "display": f"code {code}"}]
        if self.may(0.3):
            coding.append({"system": "urn:oid:1.2.3", "code": "X1", "userSelected": True})
        if self.may(0.1):
            coding.append({"code": code})
        if self.may(0.1):
            coding.append(dict(coding[0]))
        self.rng.shuffle(coding)
        return {"coding": coding, "text": f"as written {concept}"}

    def date(self, day: str, *, none: bool = True) -> str | None:
        """Write a date; a vague one may lack the day, the month, or be none."""
        if self.vague and self.may(0.12):
            return self.choice(day[:4], day[:7], None if none else day[:7], "2019-02-30" if none else day)
        return self.choice(day, f"{day}T10:15:00+01:00")

    def _patient(self, person: int, gender: int, year: int, month: int | None, day: int | None, *_: Any) -> Resource:
        born = f"{year}-{month:02}-{day:02}" if month and day else f"{year}-{month:02}" if month else f"{year}"
        if self.vague and self.may(0.05):
            born = self.choice(None, "1950-13")
        sex = {8507: "male", 8532: "female"}.get(gender, self.choice("other", "unknown", None))
        return self.made("Patient", person, birthDate=born, gender=sex, name=[{"family": "Doe", "given": ["J"]}])

    def _encounter(self, number: int, person: int, concept: int, start: str, end: str, *_: Any) -> Resource:
        system, code = CODES[concept]
        period = {"start": self.date(start) or start, "end": f"{end}T23:50:00-05:00"}
        if self.vague and self.may(0.1):
            del period["end"]
        return self.made(
            "Encounter", f"e{number:08}", status=self.choice("finished", "in-progress"), subject=self.subject(person),
            period=period, type=[self.concept(4336464)] if self.may(0.2) else None,
            **{"class": {"system": system, "code": code}},
        )  # fmt: skip

    def _condition(self, number: int, person: int, concept: int, start: str, *_: Any) -> Resource:
        when: Resource = self.choice(
            {"onsetDateTime": self.date(start, none=False), "recordedDate": "2021-01-01"},
            {"onsetPeriod": {"start": self.date(start, none=False)}},
            {"recordedDate": self.date(start)},
        )
        status = None if self.may(0.3) else {"coding": [{"code": self.choice("confirmed", "provisional")}]}
        return self.made(
            "Condition", f"c{number:08}", code=self.concept(concept), subject=self.subject(person),
            verificationStatus=status, **when,
        )  # fmt: skip

    def _observation(
        self, number: int, person: int, concept: int, day: str, moment: str | None, _: int, value: Any, unit: int | None
    ) -> Resource:
        written: str | None = day
        if moment:
            zone = self.choice("Z", "+02:00", "-05:00", "+02:00") if self.vague else "+02:00"
            written = moment.replace(" ", "T") + self.choice("", ".000") + zone
        elif self.vague:
            written = self.date(day)
        if self.may(0.2):
            when: Resource = {"effectivePeriod": {"start": written}, "issued": "2021-01-01T00:00:00Z"}
        elif moment and self.may(0.3):
            when = {self.choice("effectiveInstant", "issued"): written}
        else:
            when = {"effectiveDateTime": written}
        quantity: Resource | None = None
        if value is not None:
            quantity = {"value": float(value)}
            if unit in UNITS:
                name = UNITS[unit]
                quantity |= self.choice({"unit": name}, {"unit": "as shown", "system": UCUM, "code": name})
            if self.may(0.05):
                quantity["comparator"] = self.choice("<", ">=")
        measured: Resource = {"code": self.concept(concept), "valueQuantity": quantity}
        if quantity is None and self.vague and self.may(0.5):
            measured["dataAbsentReason"] = {"coding": [{"code": "unknown"}]}
        if self.may(0.15):  # a panel
            pressure = {"code": {"coding": [{"system": LOINC, "code": "8480-6"}]}, "valueQuantity": {"value": 120.0}}
            parts = [pressure, {key: part for key, part in measured.items() if part is not None}]
            measured = {"code": {"coding": [{"system": LOINC, "code": "85354-9"}]}, "component": parts}
        status = self.choice("final", "amended", "preliminary")
        return self.made(
            "Observation", f"o{number:08}", status=status, subject=self.subject(person), **measured, **when
        )

    def _request(self, number: int, person: int, concept: int, start: str, *_: Any) -> Resource:
        drug: Resource
        match self.choice("concept", "reference", "contained"):
            case "concept":
                drug = {"medicationCodeableConcept": self.concept(concept)}
            case "reference":
                name = f"m{number}"
                medication = self.made("Medication", name, code=self.concept(concept))
                self.all.setdefault("Medication", []).append(medication)
                drug = {"medicationReference": self.reference("Medication", name)}
            case _:
                other = {"resourceType": "Practitioner", "id": "p"}
                inside = {"resourceType": "Medication", "id": "m", "code": self.concept(concept)}
                drug = {"contained": [other, inside], "medicationReference": {"reference": "#m"}}
        return self.made(
            "MedicationRequest", f"r{number:08}", status=self.choice("active", "completed", "stopped"), intent="order",
            subject=self.subject(person), authoredOn=self.date(start), **drug,
        )  # fmt: skip

    def _procedure(self, number: int, person: int, concept: int, day: str, *_: Any) -> Resource:
        when: Resource = self.choice(
            {"performedDateTime": self.date(day)}, {"performedPeriod": {"start": self.date(day), "end": day}}
        )
        return self.made(
            "Procedure",
            f"p{number:08}",
            status="completed",
            code=self.concept(concept),
            subject=self.subject(person),
            **when,
        )

    def _wrong(self, kind: str) -> Iterator[Resource]:
        """Yield resources that do not count, and older versions of those that do."""
        for number, one in enumerate(self.all[kind][::7]):
            wrong = json.loads(json.dumps(one))
            if number % 2 and kind not in ("Patient", "Medication"):
                wrong["id"] = f"x-{one['id']}"
                match kind:
                    case "Condition":
                        wrong["verificationStatus"] = {"coding": [{"code": self.choice("refuted", "entered-in-error")}]}
                    case "MedicationRequest":
                        wrong |= self.choice(
                            {"status": "entered-in-error"}, {"doNotPerform": True}, {"intent": "proposal"}
                        )
                    case _ if number % 4 == 3:
                        wrong["subject"] = self.choice(
                            {"reference": "Group/5"}, {"identifier": {"value": "7"}}, {"reference": "Patient/gone"}
                        )
                    case _:
                        wrong["status"] = "entered-in-error"
            elif number % 4 == 0:
                wrong["meta"]["lastUpdated"] = "2023-12-31T23:59:59Z"
                wrong |= {"Patient": {"birthDate": "1900"}, "Medication": {"code": self.concept(9201)}}.get(
                    kind,
                    {"subject": self.all["Patient"][0] and {"reference": f"Patient/{self.all['Patient'][0]['id']}"}},
                )
            # else the same once more
            yield wrong


def write(folder: Path, resources: dict[str, list[Resource]], seed: int = 0) -> None:
    """Write the files of an export: several of a type, plain and compressed, in any order."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for kind, found in resources.items():
        order = rng.permutation(len(found))
        for number, part in enumerate(np.array_split(order, 3)):
            text = "".join(json.dumps(found[i], ensure_ascii=False) + "\n" for i in part)
            name = [f"{kind}.ndjson", f"{number}.{kind}.ndjson.gz", f"{kind}.00{number}.ndjson"][number]
            if number == 2:
                text = "\N{BYTE ORDER MARK}" + text.replace("\n", "\r\n\r\n")
            data = text.encode()
            (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (folder / "log.ndjson").write_text('{"exportId": "1", "eventId": "kickoff"}\n')
    (folder / "Practitioner.ndjson").write_text('{"resourceType": "Practitioner", "id": "1"}\n')
    (folder / "manifest.json").write_text("{}")

#!/usr/bin/env python3
"""Writes what a released program consists of, as an SPDX 2.3 document in JSON.

usage: sbom.py NAME VERSION EPOCH DONE [LIBRARY=VERSION]...
  DONE     folder with a file for each library of Debian, which holds its version
  LIBRARY  what the compiler brings

The same arguments give the same bytes: EPOCH, seconds since 1970, is the time in the document.
"""
import datetime
import json
import sys
from pathlib import Path

if len(sys.argv) < 5:
    sys.exit(__doc__)
name, version, epoch, done = sys.argv[1:5]
debian = {file.name: file.read_text().strip() for file in Path(done).iterdir()}
libraries = debian | dict(argument.split("=", 1) for argument in sys.argv[5:])


def package(package_name, package_version, kind):
    return {"SPDXID": f"SPDXRef-{package_name}", "name": package_name,
            "versionInfo": package_version, "primaryPackagePurpose": kind,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False}


packages = [package("tqcache", version, "APPLICATION")]
for library in sorted(libraries):
    packages.append(package(library, libraries[library], "LIBRARY"))
    if library in debian:
        packages[-1]["supplier"] = "Organization: Debian"
        packages[-1]["externalRefs"] = [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:deb/debian/{library}@{libraries[library]}?arch=source"}]
created = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
json.dump({
    "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
    "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{epoch}",
    "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
                     "creators": ["Tool: tools/release/sbom.py"]},
    "packages": packages,
    "relationships": [
        {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
         "relatedSpdxElement": "SPDXRef-tqcache"},
        *({"spdxElementId": "SPDXRef-tqcache", "relationshipType": "STATIC_LINK",
           "relatedSpdxElement": f"SPDXRef-{library}"} for library in sorted(libraries))],
}, sys.stdout, indent=1)
print()

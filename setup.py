"The package's metadata, read from settings.ini, where it has its only home."
from configparser import ConfigParser

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

settings = ConfigParser(interpolation=None, default_section="")
settings.read("settings.ini", encoding="utf-8")
project = settings["DEFAULT"]
name = project["lib_name"]


def lines(text): return [line for line in text.splitlines() if line]


class BuildWithSettings(build_py):
    "A wheel carries settings.ini inside the package, where selfcorr.config reads its defaults"
    def run(self):
        super().run()
        if not self.editable_mode: self.copy_file("settings.ini", f"{self.build_lib}/{name}/settings.ini")


setup(
    version=project["version"],
    description=project["description"],
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    keywords=project["keywords"],
    author=project["author"],
    license=project["license"],
    classifiers=lines(project["classifiers"]),
    python_requires=f">={project['min_python']}",
    install_requires=lines(project["requirements"]),
    extras_require={extra: lines(wanted) for extra, wanted in settings["extras"].items()},
    entry_points={"console_scripts": lines(project["console_scripts"])},
    packages=find_packages(include=[f"{name}*"]),
    package_data={name: ["**/*"]},
    exclude_package_data={"": ["*.pyc", "*.tmp", "_modidx.py"]},
    cmdclass={"build_py": BuildWithSettings},
)

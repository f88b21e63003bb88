# Builds the binding if the interpreter of this build has a PyTorch that the sources are written for.
set(FENCHEL_BINDING_TORCH 2.11 2.13)  # its C++ interface is not stable; tested with these versions

if(FENCHEL_SANITIZE OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT "cxx_std_20" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
  return()
endif()
find_package(Python COMPONENTS Interpreter Development.Module)
if(NOT Python_Development.Module_FOUND)
  message(STATUS "fenchel: no binding, the headers of Python were not found")
  return()
endif()
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import pathlib, sysconfig, torch; \
print(torch.__version__, pathlib.Path(torch.__file__).parent, sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  message(STATUS "fenchel: no binding, ${Python_EXECUTABLE} has no PyTorch")
  return()
endif()
list(GET found 0 torch_version)
list(GET found 1 torch_folder)
list(GET found 2 suffix)
string(REGEX MATCH "^[0-9]+[.][0-9]+" torch_release "${torch_version}")
if(NOT torch_release IN_LIST FENCHEL_BINDING_TORCH)
  list(JOIN FENCHEL_BINDING_TORCH " and " releases)
  message(STATUS "fenchel: no binding, it is for PyTorch ${releases} and not for ${torch_version}")
  return()
endif()
if(NOT EXISTS "${torch_folder}/lib/libtorch_python.so")
  message(STATUS "fenchel: no binding, the libraries of PyTorch are not in ${torch_folder}/lib")
  return()
endif()

message(STATUS "fenchel: the binding is for PyTorch ${torch_version}")
add_library(fenchel_binding MODULE "${CMAKE_CURRENT_LIST_DIR}/module.cpp")
# The name says what the binding is for. PyTorch is loaded before it, so nothing needs to be found then.
set_target_properties(fenchel_binding PROPERTIES
  PREFIX "" OUTPUT_NAME "torch-${torch_version}" SUFFIX "${suffix}" CXX_STANDARD 20 SKIP_BUILD_RPATH ON)
target_include_directories(fenchel_binding SYSTEM PRIVATE "${torch_folder}/include" ${Python_INCLUDE_DIRS})
target_compile_options(fenchel_binding PRIVATE -Wall -Wextra -O2)
target_link_directories(fenchel_binding PRIVATE "${torch_folder}/lib")
target_link_libraries(fenchel_binding PRIVATE torch_python torch_cpu c10)
if(SKBUILD AND NOT SKBUILD_STATE STREQUAL "editable")
  install(TARGETS fenchel_binding DESTINATION fenchel/ops/_binding)
else()
  set_target_properties(fenchel_binding PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${FENCHEL_OUTPUT}/_binding")
endif()
